"""A worker of verdicts.py: connected to all others, it fails as planned or because a peer fails.

    python cascade.py INBOX

It reports its round and its address to INBOX (a unix datagram socket) and receives the plan of the
round. Connections really break and signals really arrive. Only the text of gloo's error is copied,
because the real one would need torch.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from types import TracebackType
from typing import Any

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LINE = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
TEARDOWN_S = 3
HANG_S = 60
GLOO = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:{}: "
    "Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the "
    "application. Check the logs of the remote worker before reporting an error."
)


def report(kind: str, **fields: object) -> None:
    LINE.send(json.dumps({"kind": kind, "rank": RANK, **fields}).encode())


def connect(server: socket.socket, ports: list[int]) -> dict[int, socket.socket]:
    """Return a connection to every other rank, once all ranks have all their connections."""
    peers: dict[int, socket.socket] = {}
    for rank in range(RANK):
        peers[rank] = socket.create_connection(("127.0.0.1", ports[rank]), timeout=30)
        peers[rank].sendall(bytes([RANK]))
    while len(peers) < WORLD_SIZE - 1:
        peer = server.accept()[0]
        peers[peer.recv(1)[0]] = peer
    for peer in peers.values():
        peer.sendall(b"!")
    for peer in peers.values():
        peer.recv(1)
    return peers


def write_record(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Write the error file that torch's @record writes."""
    stack = "".join(traceback.format_exception(kind, error, trace))
    stamp = str(int(time.time()))  # noqa: TID251  # as torch writes it
    extra = {"py_callstack": stack, "timestamp": stamp}
    content = {"message": {"message": f"{kind.__name__}: {error}", "extraInfo": extra}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump(content, file)
    sys.__excepthook__(kind, error, trace)


def hold_on(peers: dict[int, socket.socket], seconds: int) -> None:
    """Take as long to exit as a process that releases a GPU."""
    for peer in peers.values():
        peer.close()
    time.sleep(seconds)


def hang(second: socket.socket) -> None:
    """Hang in the clean-up with all connections open; one peer knows and fails a moment later."""
    second.sendall(b"?")
    time.sleep(HANG_S)


def die_first(plan: dict[str, Any], peers: dict[int, socket.socket]) -> None:
    """Fail first; with `early` the others notice before the process has ended."""
    kind = plan["kind"]
    if kind in ("teardown", "recorded teardown"):
        atexit.register(hold_on, peers, TEARDOWN_S if kind == "teardown" else HANG_S)
    elif kind in ("hung", "hung elsewhere"):
        atexit.register(hang, peers[plan["second"]])
    elif plan["early"]:
        for peer in peers.values():
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            peer.close()
        time.sleep(plan["linger_s"])
    if kind in ("recorded", "recorded teardown", "hung", "hung elsewhere"):
        sys.excepthook = write_record
    if kind == "oom":  # that takes its time: when it is over the others say
        use_all_memory(plan["group"])
    report("failing", at_ns=time.monotonic_ns())
    match kind:
        case "exit":
            os._exit(17)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            raise ValueError("loss is nan")


def use_all_memory(group: str) -> None:
    """Allocate memory until the OOM killer of a small cgroup strikes."""
    with open(os.path.join(group, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))
    kept = [bytearray(1 << 20) for _ in range(1 << 12)]
    raise AssertionError(f"{len(kept)} MB fit into the cgroup")


def follow(plan: dict[str, Any], peers: dict[int, socket.socket]) -> None:
    """Wait until a peer fails, then fail the way workers do when they lose a peer."""
    manner = plan["manners"][RANK]
    if manner["deaf"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        ready = select.select(list(peers.values()), [], [])[0]
        answer = ready[0].recv(1)
        if not answer:
            raise EOFError
    except (OSError, EOFError) as error:
        report("failing", at_ns=time.monotonic_ns())
        time.sleep(manner["delay_s"])
        if manner["says"] == "recorded":
            sys.excepthook = write_record
        if manner["says"] == "gloo":
            raise RuntimeError(GLOO.format(20_000 + RANK)) from error
        raise
    if manner["says"] == "recorded":
        sys.excepthook = write_record
    time.sleep(plan["second_after_s"])
    raise ValueError(f"no answer: {answer!r}")


def main() -> None:
    LINE.bind("")
    LINE.connect(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        report("ready", port=port, round=int(os.environ["RALLYPOINT_ROUND"]))
        plan = json.loads(LINE.recv(65_536))
        if not plan:
            return
        peers = connect(server, plan["ports"])
    if plan["culprit"] == RANK:
        die_first(plan, peers)
    else:
        follow(plan, peers)


main()
