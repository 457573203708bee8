"""The process's standard output and standard error, each written by a thread.

A console may stop accepting output: a pager, a stopped terminal, a pipe without a reader. The event
loop must not wait for it, so a thread per stream does the writing. The thread writes

  * the agent's lines. `say` never waits. When too many lines are buffered, the oldest are dropped,
    and a line reports how many when the console accepts output again;
  * the workers' output. `write` waits while too much is buffered, so a slow console slows down only
    the worker that writes to it. When a worker has ended, `write` waits only while the console
    makes progress; otherwise threads would pile up from round to round.

Each piece is written as a whole, so lines of several workers do not mix.
"""

from __future__ import annotations

import io
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self, TextIO, cast

from rallypoint.base import terminal_text
from rallypoint.base.log import to_json_line

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LINES_MAX = 1_000
"""The agent's lines that are buffered for a stalled console."""
PIECES_BYTES_MAX = 256 * 1024
"""Output of workers that is buffered. Small, so that little is left to write at the end."""
LAST_BYTES_MAX = 8 * 1024 * 1024
"""The same for workers that have ended; each of them leaves at most a pipe full of output."""
WRITE_BYTES = 8 * 1024
"""Bytes per write. A pipe takes all of them or none; more would make a slow reader look stalled."""
QUICK_WRITE_BYTES = 64 * 1024
"""Bytes per write to a console that has proved quick. Every write costs the same, however small."""
QUICK_AFTER_BYTES = 2 * 1024 * 1024
"""A console that takes this much without a pause is quick; twice what a pipe can hold."""
QUICK_S = 0.005
"""A write that takes longer counts as a pause."""
STALLED_S = 1.0
"""A console that accepts nothing for this long has stalled; no ending agent or worker waits."""


class Console:
    """One stream, and the thread that writes to it."""

    def __init__(self, fd: int) -> None:
        """Take the descriptor to write to.

        Raises:
            RuntimeError: when no thread can be started.
        """
        self.fd = fd
        self.is_json = False
        """Its lines about itself are JSON, as those of the log."""
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._lost_bytes = 0
        self._pieces: deque[bytes] = deque()
        self._first_at = 0
        """Offset of the unwritten rest of the first piece."""
        self._pieces_bytes = 0
        self._written = 0
        self._quick_bytes = 0
        """Bytes taken since the last pause."""
        self._is_busy = False
        self._is_released = False
        self._has_thread = False
        self._start()

    def _start(self) -> None:
        if not self._has_thread:
            threading.Thread(target=self._serve, name="console", daemon=True).start()
            self._has_thread = True

    def say(self, lines: bytes) -> None:
        """Write lines of the agent, before any buffered output of workers. Never waits."""
        with self._changed:
            self._lines.append(lines)
            if len(self._lines) > LINES_MAX:
                self._lines.popleft()
                self._dropped += 1
            self._restart()
            self._changed.notify_all()

    def write(self, piece: bytes, is_last: Callable[[], bool]) -> None:
        """Write output of a worker; wait while too much is buffered.

        Output is dropped after `release`, and for a worker that has ended if the console has
        stalled. A line reports how much when the console accepts output again.

        Args:
            piece: whole lines.
            is_last: whether the worker has ended; asked again after `nudge`.
        """
        with self._changed:
            self._changed.wait_for(lambda: is_last() or self._has_room(PIECES_BYTES_MAX))
            is_late = is_last() and not self._await_room(LAST_BYTES_MAX)
            if is_late or self._is_released:
                self._lost_bytes += len(piece)
            else:
                self._pieces.append(piece)
                self._pieces_bytes += len(piece)
            self._restart()
            self._changed.notify_all()

    def _restart(self) -> None:
        with suppress(RuntimeError):  # no thread can be started: the lines wait for the next
            self._start()

    def _has_room(self, limit: int) -> bool:
        return self._is_released or self._pieces_bytes < limit

    def _await_room(self, limit: int) -> bool:
        """Wait for room while the console makes progress; return whether there is room."""
        while not self._has_room(limit):
            has_changed = partial(self._has_room_or_moved, limit, self._written)
            if not self._changed.wait_for(has_changed, STALLED_S):
                return False
        return True

    def _has_room_or_moved(self, limit: int, before: int) -> bool:
        return self._has_room(limit) or self._written > before

    def nudge(self) -> None:
        """Make every waiting `write` call its `is_last` again."""
        with self._changed:
            self._changed.notify_all()

    def release(self) -> None:
        """Drop all output of workers, buffered output too; from now on only `say` works.

        The thread ends when nothing is left to write; `say` starts another.
        """
        with self._changed:
            self._is_released = True
            self._lost_bytes += self._pieces_bytes
            self._pieces.clear()
            self._first_at = self._pieces_bytes = 0
            self._changed.notify_all()

    def flush(self, limit_s: float) -> bool:
        """Wait until everything is written; return False on giving up.

        Gives up on a console that has stalled, and after `limit_s` seconds.
        """
        end_s = time.monotonic() + limit_s
        if not self._has_thread:  # it has ended, and no other one could be started
            self._serve()
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
                self._changed.wait_for(
                    lambda: self._is_released or self._lines or self._pieces or self._lost_bytes
                )
                if not (self._lines or self._pieces or self._lost_bytes):
                    self._has_thread = False
                    return
                piece = self._take()
                self._is_busy = True
            self._put_out(piece)

    def _take(self) -> bytes:
        if self._lost_bytes:
            text = (
                f"{self._lost_bytes} bytes of ended workers were dropped: the console had stalled"
            )
            self._lines.appendleft(self._note("output_dropped", text))
            self._lost_bytes = 0
        if not self._lines:
            return self._take_some()
        if self._dropped:
            text = f"{self._dropped} log lines were dropped: the console had stalled"
            self._lines.appendleft(self._note("log_dropped", text))
            self._dropped = 0
        lines = b"".join(self._lines)
        self._lines.clear()
        return lines

    def _note(self, event: str, text: str) -> bytes:
        line = to_json_line("warning", event, why=text) if self.is_json else text
        return f"{line}\n".encode()

    def _take_some(self) -> bytes:
        """Return some whole lines of the first piece.

        The rest stays in the buffer, so that lines of the agent can overtake it.
        """
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
                rest = rest[self._write(rest[: self._stride_bytes()]) :]
            except BlockingIOError:  # the parent process made the stream non-blocking
                select.select([], [self.fd], [])
            except OSError:
                rest = rest[:0]  # the reader is gone or the disk is full: drop it
            is_quick = time.monotonic() - began_s < QUICK_S
            self._quick_bytes = self._quick_bytes + before - len(rest) if is_quick else 0
            with self._changed:
                self._written += 1
                self._changed.notify_all()

    def _write(self, piece: memoryview) -> int:
        """Write the beginning of a piece; return how many bytes of it."""
        return os.write(self.fd, piece)


class Consoles(NamedTuple):
    """Standard output and standard error."""

    out: Console
    err: Console

    @classmethod
    def open(cls) -> Self:
        """Open the streams of this process: one console for both if they are the same file."""
        out = Console(1)
        is_one = os.path.sameopenfile(1, 2)
        return cls(out, out if is_one else Console(2))


class _Lines(io.RawIOBase):
    """Passes on each write; a text file with `write_through` makes one write per call."""

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
    """Return a text file that writes lines of the agent to the console."""
    return terminal_text.open_text(cast(BinaryIO, _Lines(console)))
