"""Standard streams that always exist and never end a job.

The reader of the log may have exited (`2>&1 | head`), its disk may be full, a supervisor may have
closed the streams it does not use. The commands then run without a log.
"""

from __future__ import annotations

import io
import os
import sys

from rallypoint.base.terminal_text import open_text


class _Tolerant(io.FileIO):
    """A descriptor that treats a failed write as done."""

    def write(self, data: object) -> int:
        """Write as much of `data` as possible; report all of it as written."""
        rest = memoryview(data)  # type: ignore[arg-type]  # TextIOWrapper writes bytes
        size = rest.nbytes
        try:
            while rest:
                rest = rest[super().write(rest) or 0 :]
        except OSError:
            pass
        return size


def make_streams_tolerant() -> None:
    """Open the standard streams that are closed, and keep writes to them from failing.

    Call this first: otherwise the next opened file would get a free descriptor below 3.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `fd`
    sys.stdout, sys.stderr = _open(1), _open(2)


def _open(fd: int) -> io.TextIOWrapper:
    raw = _Tolerant(fd, "w", closefd=False)
    return open_text(raw)
