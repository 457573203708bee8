"""A workload that counts in step and checkpoints on notice: standard library only, no torch.

Every rank does a step of work, then all of them meet: the step counts when everybody has come. With
a step goes whether any rank has found a notice that its node drains; when one has, the step is
checkpointed by all before the next begins, and the workers of the draining node leave. So the step
that is lost is the one that somebody did and no checkpoint holds.

    counter.py SOCKET CHECKPOINT [stubborn]

Everything is reported to SOCKET in datagrams: `start`, `step`, `left`, `signal`.
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
"""What one step takes."""
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LINE = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
LINE.connect(sys.argv[1])
CHECKPOINT = Path(sys.argv[2])
IS_STUBBORN = "stubborn" in sys.argv[3:]
NOTICES = Path(os.environ["RALLYPOINT_NOTICE_FILE"])


def report(kind: str, **facts: object) -> None:
    """Say what happened, with CLOCK_MONOTONIC, which all processes of a machine share."""
    named = {"kind": kind, "pid": os.getpid(), "rank": RANK, "at_s": time.monotonic(), **facts}
    named["round"] = int(os.environ["RALLYPOINT_ROUND"])
    named["node"] = os.environ["RALLYPOINT_NODE"]
    LINE.send(json.dumps(named).encode())


def came(signum: int, _: FrameType | None) -> None:
    """Report a signal; a stop ends the worker, a drain is told by the file as well."""
    report("signal", signum=signum)
    if signum == signal.SIGTERM:
        os._exit(0)


class Meeting:
    """Where all ranks meet: rank 0 listens at the endpoint of the round, the others connect."""

    def __init__(self) -> None:
        """Wait until everybody is there."""
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
        """Wait for all ranks; return whether any of them said yes.

        Raises:
            ConnectionError: somebody is gone.
        """
        if RANK:
            self._peers[0].sendall(b"y" if mine else b"n")
            return self._read(self._peers[0]) == b"y"
        # A list, so that everybody is heard.
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
    """Write the checkpoint as a whole."""
    fresh = CHECKPOINT.with_suffix(f".{RANK}")
    fresh.write_text(str(step))
    os.replace(fresh, CHECKPOINT)


def count(step: int) -> None:
    """Count on from `step`, until a peer is gone."""
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
            meeting.any(False)  # the checkpoint is complete when everybody has seen it
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
