"""Splits a stream of bytes into lines for a console or a filter. Pure.

Bytes are never decoded. No loop runs over bytes, nor over lines unless a filter matches: a worker
may write 100 MB a second, and a loop in Python would hold the GIL, which heartbeats need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

LINE_BYTES_MAX = 1 << 20
"""A longer line is cut, because a line is kept until its end arrives."""


class Lines(Protocol):
    """Splits a stream. The caller passes on every returned piece at once."""

    @property
    def is_patient(self) -> bool:
        """True when the kept bytes may wait for the end of their line."""

    def feed(self, data: bytes) -> bytes:
        """Add the next bytes, at most LINE_BYTES_MAX; return the whole lines so far."""

    def flush(self) -> bytes:
        """Return the kept bytes, because the stream has ended or has waited long enough."""


class UniformLines:
    """Whole lines only, each with one newline at its end.

    A carriage return, alone or before a newline, ends a line too: each step of a progress bar is a
    line, as under torchrun. An unfinished line waits for its end, and so never mixes with one of
    another worker.
    """

    def __init__(self) -> None:
        """Start at the beginning of a line."""
        self._rest = bytearray()
        self._was_return = False

    @property
    def is_patient(self) -> bool:
        """True."""
        return True

    def feed(self, data: bytes) -> bytes:
        """Add the next bytes, at most LINE_BYTES_MAX; return the whole lines so far."""
        if self._was_return and data.startswith(b"\n"):
            data = data[1:]  # the second half of a line's end; the line was passed on
            self._was_return = False
        if not data:
            return b""
        self._was_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        self._rest += data[: end or None]
        lines = b""
        if end:
            first = self._rest.find(b"\n")
            lines = self._cut() if first > LINE_BYTES_MAX else b""
            lines += bytes(self._rest)
            self._rest = bytearray(data[end:])
        return lines + self._cut() if len(self._rest) > LINE_BYTES_MAX else lines

    def _cut(self) -> bytes:
        piece = bytes(self._rest[:LINE_BYTES_MAX]) + b"\n"
        del self._rest[:LINE_BYTES_MAX]
        return piece

    def flush(self) -> bytes:
        """Return the unfinished line, with a newline."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest + b"\n" if rest else b""


class PlainLines:
    """Every byte unchanged, as whole lines if possible: an unfinished line waits a moment."""

    def __init__(self) -> None:
        """Start at the beginning of a line."""
        self._rest = b""

    @property
    def is_patient(self) -> bool:
        """True unless an unfinished line, such as a prompt or a progress bar, is kept."""
        return not self._rest

    def feed(self, data: bytes) -> bytes:
        """Add the next bytes; return the whole lines so far."""
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end and len(self._rest) + len(data) <= LINE_BYTES_MAX:
            self._rest += data
            return b""
        lines = self._rest + data[: end or None]
        self._rest = data[end:] if end else b""
        return lines

    def flush(self) -> bytes:
        """Return the unfinished line."""
        lines, self._rest = self._rest, b""
        return lines


def with_prefix(lines: bytes, prefix: bytes) -> bytes:
    """Return `lines` with `prefix` before each one. Every line ends with a newline."""
    if not prefix or not lines:
        return lines
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


def select(lines: bytes, needles: Sequence[bytes]) -> bytes:
    """Return those of `lines` that contain any needle. Every line ends with a newline."""
    if not any(needle in lines for needle in needles):
        return b""
    return b"".join(
        line + b"\n"
        for line in lines[:-1].split(b"\n")
        if any(needle in line for needle in needles)
    )
