"""A worker that uses `rallypoint.worker` as the test says.

It reports `started` with its environment, then waits for commands, and answers each by `done` with
its result, or with the error that it has caught:

    barrier NAME TIMEOUT     wait at a barrier
    loop COUNT               wait so often at the barrier without a name
    gather PAYLOAD           gather the payloads of all ranks
    agree                    ask whether to save a checkpoint, once
    steps                    ask again and again until the answer is yes; then look at the notice
    put KEY VALUE            set a key of the run
    get KEY WAIT             read a key of the run, after a wait
    progress STEP            report a step
    mark NAME                report a milestone
    scribble                 write what is no mark where marks are written
    loaded                   say whether gRPC is loaded, and threads are
    exit CODE                end with this code
"""

import json
import os
import signal
import socket
import sys
import time

from rallypoint import worker

LINE = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
LINE.bind("")
LINE.connect("\0" + os.environ["E2E_MAILBOX"])
RUN = worker.Scope.RUN


def report(kind: str, **fields: object) -> None:
    LINE.send(json.dumps({"kind": kind, "pid": os.getpid(), **fields}).encode())


def take_steps() -> list[object]:
    calls = 1
    while not worker.should_checkpoint():
        calls += 1
    notice = worker.notice()
    return [calls, notice is not None and notice.is_leaving]


def use_key(words: list[str]) -> object:
    if words[0] == "put":
        return worker.kv.put(words[1], words[2].encode(), scope=RUN)
    found = worker.kv.get(words[1], wait_s=float(words[2]), scope=RUN)
    return None if found is None else found.decode()


def scribble() -> None:
    fd = os.open(os.environ["RALLYPOINT_MARK_PIPE"], os.O_WRONLY | os.O_NONBLOCK)
    for garbage in (b"\xff" * 500, b"1 7 imported 1\n", b"9 0 imported 1\n", b"1 0 imp"):
        os.write(fd, garbage)
    os.close(fd)


def obey(words: list[str]) -> object:  # noqa: C901  # one flat case per command
    match words:
        case ["barrier", name, timeout]:
            worker.barrier(name, timeout_s=float(timeout))
        case ["loop", count]:
            for _ in range(int(count)):
                worker.barrier()
        case ["gather", payload]:
            return [one.decode() for one in worker.all_gather(payload.encode())]
        case ["agree"]:
            return worker.should_checkpoint()
        case ["steps"]:
            return take_steps()
        case ["put" | "get", *_]:
            return use_key(words)
        case ["progress", step]:
            worker.progress(int(step))
        case ["mark", "imported" | "process_group" as name]:
            worker.mark(name)
        case ["scribble"]:
            scribble()
        case ["loaded"]:
            return ["grpc" in sys.modules, "threading" in sys.modules]
        case ["exit", code]:
            sys.exit(int(code))
        case _:
            raise ValueError(words)
    return "ok"


class Stop:
    """Ends the worker at SIGTERM, but only after the answer to a command."""

    def __init__(self) -> None:
        self.is_busy = self.is_due = False
        signal.signal(signal.SIGTERM, self.note)

    def note(self, *_: object) -> None:
        self.is_due = True
        if not self.is_busy:
            sys.exit(143)

    def rest(self) -> None:
        self.is_busy = False
        if self.is_due:
            sys.exit(143)


stop = Stop()
report("started", parent=os.getppid(), argv=[], env=dict(os.environ), at_s=time.monotonic())
while True:
    words = json.loads(LINE.recv(4096))
    stop.is_busy = True
    try:
        report("done", words=words, result=obey(words))
    except worker.errors.BarrierBroken as error:
        found = [list(error.missing.ranks), list(error.lost.ranks)]
        report("done", words=words, error=type(error).__name__, text=str(error), ranks=found)
    except worker.errors.RallypointError as error:
        report("done", words=words, error=type(error).__name__, text=str(error))
    stop.rest()
