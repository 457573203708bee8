"""Cuts a stream of bytes into lines for a console or a filter. Pure.

Bytes are never decoded, and no loop runs over bytes or, but for a filter that has found something,
over lines: a worker may write 100 MB a second, and what takes these bytes apart holds the
interpreter that also has to send the agent's heartbeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

LINE_BYTES_MAX = 1 << 20
"""A longer line is cut: it would have to be kept until its end comes."""


class Lines(Protocol):
    """How a stream is cut. What is returned is to be passed on at once."""

    @property
    def is_patient(self) -> bool:
        """True when nothing that is kept wants to be passed on before its end comes."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, at most LINE_BYTES_MAX; return the whole lines so far."""

    def take_rest(self) -> bytes:
        """Return what is kept: the stream has ended, or `is_patient` is false and time is up."""


class UniformLines:
    """Whole lines only, each with one newline at its end.

    A carriage return ends a line, too, alone or before a newline: a progress bar is a line per
    step, as under torchrun. Half a line waits for its other half, so that it never meets half a
    line of another worker.
    """

    def __init__(self) -> None:
        """Begin at the beginning of a line."""
        self._rest = bytearray()
        self._was_return = False

    @property
    def is_patient(self) -> bool:
        """True."""
        return True

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, at most LINE_BYTES_MAX; return the whole lines so far."""
        if self._was_return and data.startswith(b"\n"):
            data = data[1:]  # the other half of a line's end that was passed on already
            self._was_return = False
        if not data:
            return b""
        self._was_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        self._rest += data[: end or None]
        found = b""
        if end:
            first = self._rest.find(b"\n")
            found = self._cut() if first > LINE_BYTES_MAX else b""
            found += bytes(self._rest)
            self._rest = bytearray(data[end:])
        return found + self._cut() if len(self._rest) > LINE_BYTES_MAX else found

    def _cut(self) -> bytes:
        piece = bytes(self._rest[:LINE_BYTES_MAX]) + b"\n"
        del self._rest[:LINE_BYTES_MAX]
        return piece

    def take_rest(self) -> bytes:
        """Return the unfinished line, with a newline."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest + b"\n" if rest else b""


class PlainLines:
    """Every byte as it is, whole lines where possible: an unfinished line waits a moment."""

    def __init__(self) -> None:
        """Begin at the beginning of a line."""
        self._rest = b""

    @property
    def is_patient(self) -> bool:
        """True unless an unfinished line is kept: a prompt, or a progress bar."""
        return not self._rest

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return the whole lines so far."""
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end and len(self._rest) + len(data) <= LINE_BYTES_MAX:
            self._rest += data
            return b""
        found = self._rest + data[: end or None]
        self._rest = data[end:] if end else b""
        return found

    def take_rest(self) -> bytes:
        """Return the unfinished line."""
        found, self._rest = self._rest, b""
        return found


def with_prefix(lines: bytes, prefix: bytes) -> bytes:
    """Return `lines`, each of which ends with a newline, with `prefix` before every one."""
    if not prefix or not lines:
        return lines
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


def select(lines: bytes, needles: Sequence[bytes]) -> bytes:
    """Return those of `lines`, each of which ends with a newline, that contain any needle."""
    if not any(needle in lines for needle in needles):
        return b""
    return b"".join(
        line + b"\n"
        for line in lines[:-1].split(b"\n")
        if any(needle in line for needle in needles)
    )
