"""Lines that other processes write to a FIFO, read without blocking and within limits."""

from __future__ import annotations

import os


class FifoLines:
    """The reading end of a FIFO."""

    def __init__(self, fd: int, *, line_bytes_max: int, read_bytes: int) -> None:
        """Read from a descriptor that does not block; the caller closes it.

        Args:
            fd: of the FIFO.
            line_bytes_max: the longest line, without its end. What is written at once stays
                together up to `PIPE_BUF` bytes.
            read_bytes: limit of one read: a writer that never stops must not keep the reader.
        """
        self._fd = fd
        self._line_bytes_max = line_bytes_max
        self._read_bytes = read_bytes
        self._rest = b""
        self._is_skipping = False
        """The next bytes are the rest of a line that is too long."""

    def read(self) -> list[bytes | None]:
        """Read once.

        Returns:
            The lines that have ended, in the order written; None for one that is too long.
        """
        try:
            data = os.read(self._fd, self._read_bytes)
        except BlockingIOError:
            return []
        *ended, self._rest = (self._rest + data).split(b"\n")
        lines = [self._limited(line) for line in ended]
        if len(self._rest) > self._line_bytes_max:
            self._is_skipping, self._rest = True, b""
        return lines

    def _limited(self, line: bytes) -> bytes | None:
        is_cut, self._is_skipping = self._is_skipping, False
        return None if is_cut or len(line) > self._line_bytes_max else line
