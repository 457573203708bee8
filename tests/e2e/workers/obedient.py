"""A worker that reports what happens to it and obeys the test.

It reports `started` with its environment, then waits for commands:

    exit CODE          end with this code
    raise TEXT         die of an uncaught exception
    say TEXT           write a line to standard error
    print TEXT         write a line to standard output
    record TEXT        write TEXT as a message into the error file, as a worker without torch may
    flood MB           write so many megabytes of numbered lines, then report `flooded`
    pour               write to standard output and error without end
    spawn              start a grandchild in a separate session that ignores TERM
    fork               start a child that handles no signal and stays in this group
    TERM|INT ignore    from now on report the signal and ignore it
    TERM|INT obey      report it and end with 0
    TERM|INT mute      report it and end with 9

Each command about a signal is answered by `ready`. Arguments: any; they are reported.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType

LINE = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
MAILBOX = os.environ["E2E_MAILBOX"]
HAS_PATH = "/" in MAILBOX
LINE.bind(f"{MAILBOX}.{os.getpid()}" if HAS_PATH else "")
LINE.connect(MAILBOX if HAS_PATH else "\0" + MAILBOX)


def report(kind: str, **fields: object) -> None:
    LINE.send(json.dumps({"kind": kind, "pid": os.getpid(), **fields}).encode())


def handle(name: str, manner: str) -> None:
    def came(signum: int, _: FrameType | None) -> None:
        report("signalled", signum=signum)
        if manner != "ignore":
            os._exit({"obey": 0, "mute": 9}[manner])

    signal.signal(signal.Signals[f"SIG{name}"], came)
    report("ready")


def spawn() -> None:
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report("grandchild")
        while True:
            signal.pause()


def fork() -> None:
    if os.fork() == 0:
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(signum, signal.SIG_DFL)
        report("child")
        while True:
            signal.pause()


def flood(megabytes: int) -> None:
    """Write numbered lines of 100 bytes."""
    for block in range(megabytes * 10):
        rest = b"".join(b"%099d\n" % line for line in range(block * 1_000, (block + 1) * 1_000))
        while rest:
            rest = rest[os.write(1, rest) :]
    report("flooded")


def pour() -> None:
    def write(fd: int) -> None:
        while True:
            os.write(fd, b"drop\n" * 1_000)

    for fd in (1, 2):
        threading.Thread(target=write, args=(fd,), daemon=True).start()


def obey(words: list[str]) -> None:
    match words:
        case ["exit", code]:
            sys.exit(int(code))
        case ["raise", text]:
            raise RuntimeError(text)
        case ["say", text]:
            os.write(2, f"{text}\n".encode())
        case ["print", text]:
            os.write(1, f"{text}\n".encode())  # at once, or lines of two workers would mix
        case ["record", text]:
            with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
                json.dump({"message": {"message": text, "extraInfo": {}}}, file)
        case ["flood", megabytes]:
            flood(int(megabytes))
        case [deed]:
            {"pour": pour, "spawn": spawn, "fork": fork}[deed]()
        case [name, manner]:
            handle(name, manner)


report(
    "started",
    parent=os.getppid(),
    argv=sys.argv[1:],
    env=dict(os.environ),
    at_s=time.monotonic(),
)
while True:
    obey(json.loads(LINE.recv(4096)))
