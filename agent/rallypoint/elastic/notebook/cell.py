"""Where a launch writes: the standard streams of the program, which a notebook shows in the cell.

The agent writes the workers' output to file descriptors. A notebook replaces `sys.stdout` and
`sys.stderr` instead, and shows each line in the cell whose code writes it. A thread belongs to the
cell that has started it, as long as it runs in a copy of that cell's context.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from typing import TextIO

from rallypoint.base.console import Console, Consoles

FLUSH_S_MAX = 5.0
"""How long the end of a launch waits for a slow stream."""


class Cell:
    """The standard streams of one launch. Every write is whole lines."""

    def __init__(self) -> None:
        """Take the streams of the moment, and the context of the calling thread."""
        self._lock = threading.Lock()
        self.out = _CellConsole(1, sys.stdout, self._lock)
        self.err = _CellConsole(2, sys.stderr, self._lock)

    @property
    def consoles(self) -> Consoles:
        """The streams, as the agent takes them."""
        return Consoles(self.out, self.err)

    def show(self, text: str) -> None:
        """Write a line about the launch."""
        self.out.put(f"{text}\n")

    def close(self) -> None:
        """Write the rest, and end the threads."""
        for console in (self.out, self.err):
            console.flush(FLUSH_S_MAX)
            console.release()


class _CellConsole(Console):
    """Writes to a text stream of Python."""

    def __init__(self, fd: int, stream: TextIO, lock: threading.Lock) -> None:
        self._stream = stream
        self._lock = lock
        self._context = contextvars.copy_context()
        super().__init__(fd)

    def put(self, text: str) -> None:
        """Write at once, from the calling thread."""
        with self._lock:
            self._stream.write(text)
            self._stream.flush()

    def _serve(self) -> None:
        self._context.copy().run(super()._serve)  # a copy: the thread before may still leave it

    def _stride_bytes(self) -> int:
        return sys.maxsize  # whole lines, so that no character is cut

    def _write(self, piece: memoryview) -> int:
        self.put(bytes(piece).decode(errors="replace"))
        return len(piece)
