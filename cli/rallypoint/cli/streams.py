"""Standard streams that are always there and never the reason why a job ends.

Whoever reads the log may be gone (`2>&1 | head`), the disk that takes it may be full, a supervisor
may have closed what it does not use: the commands go on without being heard.
"""

from __future__ import annotations

import io
import os
import sys


class _Tolerant(io.FileIO):
    """A descriptor on which a failed write counts as done."""

    def write(self, data: object) -> int:
        """Write all of `data`, as far as that is possible."""
        rest = memoryview(data)  # type: ignore[arg-type]  # TextIOWrapper writes bytes
        size = rest.nbytes
        try:
            while rest:
                rest = rest[super().write(rest) or 0 :]
        except OSError:
            pass
        return size


def make_streams_tolerant() -> None:
    """Open what was closed, and let no write to standard output or error fail.

    Call this first: a descriptor below 3 that is free would be given to the next file opened.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is `fd`
    sys.stdout, sys.stderr = _open(1), _open(2)


def _open(fd: int) -> io.TextIOWrapper:
    raw = _Tolerant(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
