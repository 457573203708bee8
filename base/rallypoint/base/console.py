"""The agent's own streams, to which nobody but these threads writes.

A console may stand still for as long as it likes: a pager, a stopped terminal, a pipe that nobody
reads. So the agent never writes to it. A thread per stream does, and is given

  * lines of the agent's own, which never wait: when too many are kept, the oldest go, and how many
    is said once the console takes something again;
  * what workers wrote, whose threads wait while too much is kept: so a worker is slowed by its own
    console, and nothing but that worker. Threads of workers that have ended wait no longer than
    the console moves, or each round would leave its own behind.

What is handed over at once is written at once, so lines of several workers do not mix.
"""

from __future__ import annotations

import io
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Self, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LINES_MAX = 1_000
"""Lines of the agent's own that are kept for a console that takes nothing."""
PIECES_BYTES_MAX = 256 * 1024
"""Output of workers that is kept. Little, so that its end is soon out when all is over."""
LAST_BYTES_MAX = 8 * 1024 * 1024
"""The same for workers that have ended: of each no more can come than its pipe holds."""
WRITE_BYTES = 8 * 1024
"""In one go. A pipe takes all of it or none: with more a slow reader seems to stand still."""
QUICK_WRITE_BYTES = 64 * 1024
"""The same for a console that has shown to be quick: each write costs the same, however small."""
QUICK_AFTER_BYTES = 2 * 1024 * 1024
"""Taken without a pause; twice what a pipe holds at most, or it may only have been empty."""
QUICK_S = 0.005
"""A write that takes longer was a pause."""
STALLED_S = 1.0
"""A console that takes nothing for so long is not waited for when the agent or a worker ends."""


class Console:
    """One stream of the agent's, and the thread that writes to it."""

    def __init__(self, fd: int) -> None:
        """Take the descriptor to write to.

        Raises:
            RuntimeError: no thread can be had.
        """
        self.fd = fd
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._lost_bytes = 0
        self._pieces: deque[bytes] = deque()
        self._first_at = 0
        """Where the rest of the first piece begins."""
        self._pieces_bytes = 0
        self._written = 0
        self._quick_bytes = 0
        """Taken since the last pause."""
        self._is_busy = False
        self._is_released = False
        threading.Thread(target=self._serve, name="console", daemon=True).start()

    def say(self, lines: bytes) -> None:
        """Hand over lines of the agent's own; never waits, and overtakes what workers wrote."""
        with self._changed:
            self._lines.append(lines)
            if len(self._lines) > LINES_MAX:
                self._lines.popleft()
                self._dropped += 1
            self._changed.notify_all()

    def write(self, piece: bytes, is_last: Callable[[], bool]) -> None:
        """Hand over what a worker wrote; wait while too much of it is kept.

        What comes after `release`, or from a worker that has ended when the console has stalled, is
        dropped; how much is said once the console takes something again.

        Args:
            is_last: tells whether the worker has ended, asked again after `nudge`.
        """
        with self._changed:
            self._changed.wait_for(lambda: is_last() or self._has_room(PIECES_BYTES_MAX))
            is_late = is_last() and not self._await_room(LAST_BYTES_MAX)
            if is_late or self._is_released:
                self._lost_bytes += len(piece)
            else:
                self._pieces.append(piece)
                self._pieces_bytes += len(piece)
            self._changed.notify_all()

    def _has_room(self, limit: int) -> bool:
        return self._is_released or self._pieces_bytes < limit

    def _await_room(self, limit: int) -> bool:
        """Return whether there is room, after waiting for it while the console moves."""
        while not self._has_room(limit):
            has_changed = partial(self._has_room_or_moved, limit, self._written)
            if not self._changed.wait_for(has_changed, STALLED_S):
                return False
        return True

    def _has_room_or_moved(self, limit: int, before: int) -> bool:
        return self._has_room(limit) or self._written > before

    def nudge(self) -> None:
        """Let whoever waits in `write` look again."""
        with self._changed:
            self._changed.notify_all()

    def release(self) -> None:
        """Take nothing of workers any more, and drop what is kept: whoever waits in `write` goes on
        unheard, and what the agent says now is the last."""
        with self._changed:
            self._is_released = True
            self._lost_bytes += self._pieces_bytes
            self._pieces.clear()
            self._first_at = self._pieces_bytes = 0
            self._changed.notify_all()

    def flush(self, limit_s: float) -> bool:
        """Wait until all is written; tell whether it is. Gives up at once on a console that has
        stalled, and after `limit_s` seconds on a slow one."""
        end_s = time.monotonic() + limit_s
        with self._changed:
            while not self._is_idle():
                before, left_s = self._written, end_s - time.monotonic()
                patience_s = max(0.0, min(left_s, STALLED_S))
                if not self._changed.wait_for(partial(self._has_moved, before), patience_s):
                    return False
        return True

    def _has_moved(self, before: int) -> bool:
        return self._is_idle() or self._written > before

    def _is_idle(self) -> bool:
        return not (self._lines or self._pieces or self._lost_bytes or self._is_busy)

    # --- the thread ---

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._pieces or self._lost_bytes)
                piece = self._take()
                self._is_busy = True
            self._put_out(piece)

    def _take(self) -> bytes:
        if self._lost_bytes:
            text = f"{self._lost_bytes} bytes of ended workers were dropped: the console did not"
            self._lines.appendleft(f"{text} take them\n".encode())
            self._lost_bytes = 0
        if not self._lines:
            return self._take_some()
        if self._dropped:
            text = f"{self._dropped} log lines were dropped: the console did not take them\n"
            self._lines.appendleft(text.encode())
            self._dropped = 0
        lines = b"".join(self._lines)
        self._lines.clear()
        return lines

    def _take_some(self) -> bytes:
        """Return some whole lines of the first piece; the rest stays: lines of the agent's own
        overtake what a slow console has not taken yet."""
        piece, begin = self._pieces[0], self._first_at
        far = begin + self._stride_bytes()
        end = piece.rfind(b"\n", begin, far) + 1 or piece.find(b"\n", far) + 1 or len(piece)
        self._first_at = end
        if end == len(piece):
            self._pieces.popleft()
            self._first_at = 0
        self._pieces_bytes -= end - begin
        return piece[begin:end]

    def _stride_bytes(self) -> int:
        return QUICK_WRITE_BYTES if self._quick_bytes >= QUICK_AFTER_BYTES else WRITE_BYTES

    def _put_out(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            began_s, before = time.monotonic(), len(rest)
            try:
                rest = rest[os.write(self.fd, rest[: self._stride_bytes()]) :]
            except BlockingIOError:  # whoever gave us the stream made it so
                select.select([], [self.fd], [])
            except OSError:
                rest = rest[:0]  # a reader that is gone, a disk that is full: unheard
            is_quick = time.monotonic() - began_s < QUICK_S
            self._quick_bytes = self._quick_bytes + before - len(rest) if is_quick else 0
            with self._changed:
                self._written += 1
                self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Consoles:
    """The agent's standard output and standard error."""

    out: Console
    err: Console

    @classmethod
    def open(cls) -> Self:
        """Take the streams of this process; one console for both if they are one file."""
        out = Console(1)
        is_one = os.path.sameopenfile(1, 2)
        return cls(out, out if is_one else Console(2))


class _Lines(io.RawIOBase):
    """Hands over what is written, which a text file with `write_through` writes in one piece."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        lines = bytes(data)
        self._console.say(lines)
        return len(lines)


def open_text(console: Console) -> TextIO:
    """Return a file for lines of the agent's own, each written whole."""
    raw = cast(BinaryIO, _Lines(console))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
