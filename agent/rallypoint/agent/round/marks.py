"""The FIFO through which workers tell their agent which milestones they have reached.

A worker writes one line at once, without waiting, with an end of line before it too: what another
process may have written there stays apart.

    ROUND LOCAL_RANK NAME MILLISECONDS

NAME is that of a `Milestone`. MILLISECONDS says when the worker has reached it, by CLOCK_MONOTONIC,
which all processes of a machine share.

A worker may write anything, as often as it likes. So a line counts only if it is about a worker of
the round that runs, once for each milestone, and the FIFO is read in small portions with pauses.
The worker that finds the FIFO full tries again later.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.core.held_round import Milestone
from rallypoint.agent.core.inputs import MilestoneReached
from rallypoint.agent.machine.fifo import FifoLines
from rallypoint.base.log import get_logger

log = get_logger()

NAME = "marks"
LINE_BYTES_MAX = 64
"""The longest line has 54 bytes."""
READ_BYTES = 1_024
"""Read at once: the lines of twenty workers."""
PAUSE_S = 0.02
"""Between two reads: parsing what a worker writes without end takes a small part of a core."""
_LINE = re.compile(rb"(\d{1,16}) (\d{1,4}) ([a-z_]{1,16}) (\d{1,16})")
_MILESTONES = {milestone.value.encode(): milestone for milestone in Milestone}


def parse_mark(line: bytes) -> MilestoneReached | None:
    """Return what a line says; None: it is not one of ours, or of a newer worker."""
    found = _LINE.fullmatch(line)
    milestone = None if found is None else _MILESTONES.get(found[3])
    if found is None or milestone is None:
        return None
    return MilestoneReached(int(found[1]), int(found[2]), milestone, int(found[4]))


class MarkPipe:
    """The FIFO of one node, made for its first round. Only `path` may be called in any thread."""

    def __init__(
        self,
        folder: Callable[[], Path],
        post: Callable[[MilestoneReached], None],
    ) -> None:
        """Begin without a FIFO.

        Args:
            folder: returns the agent's own folder.
            post: takes what the workers of the round have reached, each once.
        """
        self._folder = folder
        self._post = post
        self._lock = threading.Lock()
        self._path = ""
        self._fd = -1
        self._lines: FifoLines | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._round, self._size = 0, 0
        """The round that runs, and how many workers it has here."""
        self._is_closed = False
        self._known: set[tuple[int, Milestone]] = set()
        """What its workers have reached, by local rank."""

    def path(self) -> str:
        """Return the path; "" if workers cannot tell the agent."""
        with self._lock:
            if self._is_closed:
                return ""
            if not self._path:
                try:
                    self._open(self._folder() / NAME)
                except OSError as error:  # a full disk must not keep workers from starting
                    log.warning(
                        "marks_not_passed_on", why=str(error), then="the timeline lacks them"
                    )
            if self._is_closed:  # meanwhile, and it did not wait
                self._close_file()
                return ""
            return self._path

    def _open(self, path: Path) -> None:
        path.unlink(missing_ok=True)  # of an attempt that has failed
        os.mkfifo(path, 0o600)
        # Both ends, so that no read sees the end of the file.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._lines = FifoLines(self._fd, line_bytes_max=LINE_BYTES_MAX, read_bytes=READ_BYTES)
        self._path = str(path)

    def begin(self, order: RunOrder) -> None:
        """Listen to the workers of a round, which start now."""
        self._round, self._size = order.number, order.assignment.local_world_size
        self._known.clear()
        if self._pause is None:
            self._listen()

    def close(self) -> None:
        """Stop listening, for good. The FIFO goes with the agent's folder."""
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        if self._lines is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
        # Never waits for the thread that makes the FIFO: it closes what it has opened itself.
        if self._lock.acquire(blocking=False):
            self._close_file()
            self._lock.release()

    def _close_file(self) -> None:
        if self._lines is not None:
            os.close(self._fd)
            self._lines = None

    def _listen(self) -> None:
        self._pause = None
        if self._lines is not None and not self._is_closed:
            asyncio.get_running_loop().add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._fd)
        for line in self._lines.read() if self._lines is not None else ():
            mark = None if line is None else parse_mark(line)
            if mark is not None:
                self._take(mark)
        self._pause = loop.call_later(PAUSE_S, self._listen)

    def _take(self, mark: MilestoneReached) -> None:
        known = (mark.local_rank, mark.milestone)
        is_fresh = mark.round == self._round and mark.local_rank < self._size
        if is_fresh and known not in self._known:
            self._known.add(known)
            self._post(mark)
