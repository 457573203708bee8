"""The agent's own streams, to which nobody but these threads writes.

A console may stand still for as long as it likes: a pager, a stopped terminal, a pipe that nobody
reads. So the agent never writes to it. A thread per stream does, and is given

  * lines of the agent's own, which never wait: when too many are kept, the oldest go, and how many
    is said once the console takes something again;
  * what workers wrote, whose threads wait while too much is kept: so a worker is slowed by its own
    console, and nothing but that worker.

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
WRITE_BYTES = 64 * 1024
STALLED_S = 1.0
"""A console that takes nothing for so long is not waited for when the agent ends."""


class Console:
    """One stream of the agent's, and the thread that writes to it."""

    def __init__(self, fd: int) -> None:
        """Take the descriptor to write to."""
        self.fd = fd
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._pieces: deque[bytes] = deque()
        self._pieces_bytes = 0
        self._written = 0
        self._is_busy = False
        self._is_released = False
        self._thread: threading.Thread | None = None

    def say(self, lines: bytes) -> None:
        """Hand over lines of the agent's own; never waits, and overtakes what workers wrote."""
        with self._changed:
            self._lines.append(lines)
            if len(self._lines) > LINES_MAX:
                self._lines.popleft()
                self._dropped += 1
            self._wake()

    def write(self, piece: bytes, is_last: Callable[[], bool]) -> None:
        """Hand over what a worker wrote; wait while too much of it is kept.

        Args:
            is_last: tells whether the worker has ended, asked again after `nudge`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(is_last()))
            if self._is_released:
                return
            self._pieces.append(piece)
            self._pieces_bytes += len(piece)
            self._wake()

    def _has_room(self, is_last: bool) -> bool:
        limit = LAST_BYTES_MAX if is_last else PIECES_BYTES_MAX
        return self._is_released or self._pieces_bytes < limit

    def nudge(self) -> None:
        """Let whoever waits in `write` look again."""
        with self._changed:
            self._changed.notify_all()

    def release(self) -> None:
        """Take nothing of workers any more: whoever waits in `write` goes on unheard."""
        with self._changed:
            self._is_released = True
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
        return not (self._lines or self._pieces or self._is_busy)

    # --- the thread ---

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="console", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._pieces)
                piece = self._take()
                self._is_busy = True
            self._put_out(piece)

    def _take(self) -> bytes:
        if not self._lines:
            piece = self._pieces.popleft()
            self._pieces_bytes -= len(piece)
            return piece
        if self._dropped:
            text = f"{self._dropped} log lines were dropped: the console did not take them\n"
            self._lines.appendleft(text.encode())
            self._dropped = 0
        lines = b"".join(self._lines)
        self._lines.clear()
        return lines

    def _put_out(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            try:
                rest = rest[os.write(self.fd, rest[:WRITE_BYTES]) :]
            except BlockingIOError:  # whoever gave us the stream made it so
                select.select([], [self.fd], [])
            except OSError:
                rest = rest[:0]  # a reader that is gone, a disk that is full: unheard
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
