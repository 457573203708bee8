"""A workload that counts steps and checkpoints on notice: standard library only, no torch.

In each step every rank works, then all ranks meet; a step counts when all have come. The meeting
also says whether any rank has found a notice that its node drains. Then all ranks write a
checkpoint before the next step, and the workers of the draining node leave. A lost step is one that
was done and is in no checkpoint.

    counter.py SOCKET CHECKPOINT [stubborn]

The workload reports `start`, `step`, `left` and `signal` to SOCKET in datagrams.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType

WORK_S = 0.02
"""Duration of a step."""
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LINE = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
LINE.connect(sys.argv[1])
CHECKPOINT = Path(sys.argv[2])
IS_STUBBORN = "stubborn" in sys.argv[3:]
NOTICES = Path(os.environ["RALLYPOINT_NOTICE_FILE"])


def report(kind: str, **facts: object) -> None:
    """Report an event with the time of CLOCK_MONOTONIC, which all processes of a machine share."""
    named = {"kind": kind, "pid": os.getpid(), "rank": RANK, "at_s": time.monotonic(), **facts}
    named["round"] = int(os.environ["RALLYPOINT_ROUND"])
    named["node"] = os.environ["RALLYPOINT_NODE"]
    LINE.send(json.dumps(named).encode())


def came(signum: int, _: FrameType | None) -> None:
    """Report a signal. A stop ends the worker; a drain is also announced by the file."""
    report("signal", signum=signum)
    if signum == signal.SIGTERM:
        os._exit(0)


class Meeting:
    """The meeting of all ranks: rank 0 listens at the round's endpoint, the others connect."""

    def __init__(self) -> None:
        """Wait until all ranks are connected."""
        endpoint = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self._peers: list[socket.socket] = []
        if RANK == 0:
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(endpoint)
                listener.listen(WORLD)
                while len(self._peers) < WORLD - 1:
                    self._peers.append(listener.accept()[0])
            return
        while True:
            try:
                self._peers.append(socket.create_connection(endpoint, timeout=1))
                self._peers[0].settimeout(None)
                return
            except OSError:
                time.sleep(0.01)

    def any(self, mine: bool) -> bool:
        """Wait for all ranks; return whether any of them passed True.

        Raises:
            ConnectionError: when a rank is gone.
        """
        if RANK:
            self._peers[0].sendall(b"y" if mine else b"n")
            return self._read(self._peers[0]) == b"y"
        # A list, so that every rank is read.
        is_any = any([mine, *[self._read(peer) == b"y" for peer in self._peers]])
        for peer in self._peers:
            peer.sendall(b"y" if is_any else b"n")
        return is_any

    @staticmethod
    def _read(peer: socket.socket) -> bytes:
        word = peer.recv(1)
        if not word:
            raise ConnectionError("a peer is gone")
        return word


def find_drain() -> tuple[bool, bool]:
    """Return whether any node drains, and whether it is this one."""
    try:
        notices = json.loads(NOTICES.read_text())
    except FileNotFoundError:
        return False, False
    drains = [notice for notice in notices if notice["kind"] == "drain"]
    return bool(drains), any(notice["here"] for notice in drains)


def save(step: int) -> None:
    """Replace the checkpoint atomically."""
    fresh = CHECKPOINT.with_suffix(f".{RANK}")
    fresh.write_text(str(step))
    os.replace(fresh, CHECKPOINT)


def count(step: int) -> None:
    """Count from `step` on, until a peer is gone."""
    meeting = Meeting()
    while True:
        time.sleep(WORK_S)
        is_draining, is_here = find_drain()
        is_told = meeting.any(is_draining)
        step += 1
        report("step", step=step)
        if is_told:
            if RANK == 0:
                save(step)
            meeting.any(False)  # the checkpoint is complete when all ranks have seen it
            if is_here and not IS_STUBBORN:
                report("left", step=step)
                os._exit(0)


for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, came)
begun = int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0
report("start", step=begun, restarts=int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
try:
    count(begun)
except OSError:
    while True:
        signal.pause()  # the coordinator will stop this round
