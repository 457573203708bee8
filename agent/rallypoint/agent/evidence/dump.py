"""Lets an armed worker write its stacks, and reads them. All calls block; a thread makes them.

The file is the worker's: it may be anything, and hold anything. The worker appends to it, so what
was read can be cut off.
"""

from __future__ import annotations

import os
import signal
import stat

from rallypoint.agent.evidence.processes import find_link, is_signal_open
from rallypoint.agent.evidence.target import Target

SIGNUM = signal.SIGURG
READ_BYTES_MAX = 512 * 1024
"""100 threads of 100 frames with usual paths."""
HEADER_BYTES_MAX = 16
QUIET_LOOKS = 10
"""After so many looks without growth the stacks are complete, even if the signal looks open: the
main thread blocks it, and another thread has handled it."""


class StackDump:
    """The stacks of one worker: `begin`, then the signal, `look` until they are there, `finish`."""

    def __init__(self, target: Target) -> None:
        """Begin without a file."""
        self._target = target
        self._fd = -1
        self._base = self._size = 0
        """Size of the file before the signal, and at the last look."""
        self._quiet_looks = 0

    def begin(self) -> str:
        """Open the file; return why no signal must be sent, or "".

        A program that has closed the descriptor may have another file under its number.
        """
        path = self._target.stacks
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags)
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                return "its file is not a regular file"
            header, newline, _ = os.pread(self._fd, HEADER_BYTES_MAX, 0).partition(b"\n")
            if not (newline and header.isdigit()):
                return "it has not been armed completely"
            if find_link(self._target.pid, int(header)) != os.path.realpath(path):
                return "it has closed its file"
            self._base = self._size = len(header) + 1
            os.ftruncate(self._fd, self._base)  # an answer that came too late before
        except FileNotFoundError:
            return "it is not armed: it still starts, or runs no Python, or another program"
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def look(self) -> bool:
        """Return whether the stacks are complete."""
        size = os.fstat(self._fd).st_size
        has_grown, self._size = size > self._size, size
        self._quiet_looks = 0 if has_grown else self._quiet_looks + 1
        if size > self._base and not has_grown:
            is_open = is_signal_open(self._target.pid, SIGNUM)
            return not is_open or self._quiet_looks >= QUIET_LOOKS
        return False

    def finish(self) -> str:
        """Return what was written, and cut it off."""
        if self._fd < 0:
            return ""
        data = os.pread(self._fd, READ_BYTES_MAX, self._base)
        os.ftruncate(self._fd, self._base)
        return data.decode("utf-8", "replace")

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
