"""The protocol between the agent and its helper process: frames, limits, and the helper's end.

A frame is a 4-byte big-endian length and that many bytes of JSON. The JSON is pure ASCII, so a
surrogate escape (a byte of an environment variable that is not UTF-8) survives as ``\\udcXX``.
File descriptors travel beside the frame as SCM_RIGHTS; this module does not handle them.

Imported by the helper: standard library only, and no module that costs memory.
"""

from __future__ import annotations

import json
import os
import signal

TYPE_CHECKING = False  # mypy knows the name; importing typing would cost the helper 1 MB
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Room for an environment at the kernel's own limit (6 MiB of arguments and environment), escaped.
MAX_FRAME_BYTES = 16 * 1024 * 1024
LENGTH_BYTES = 4

# After the agent hung up or died, the helper tries this long to kill its descendants, then ends. A
# survivor is in uninterruptible sleep or another user's; direct children die with the helper.
LAST_SWEEP_MS = 10_000

# Where a forkserver has its sockets to the agent and to the helper: above the descriptors that a
# program expects to be free, and below any limit that an interpreter could start with.
FORKSERVER_FDS = (63, 62)

# Names the prefix of the files by which a worker shows what it does; see in_worker/preload/.
ARMED_ENV = "RALLYPOINT_ARMED"

# Signals that the helper ignores. INT and HUP come from a terminal, TERM from a scheduler, but the
# helper ends with the agent only, and the socket reports that.
IGNORED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
)


class FrameTooLarge(ValueError):
    """A frame to send or to receive is longer than MAX_FRAME_BYTES."""

    def __init__(self, size_bytes: int) -> None:
        """Carry the refused size."""
        super().__init__(f"frame of {size_bytes} bytes; the limit is {MAX_FRAME_BYTES}")
        self.size_bytes = size_bytes


def encode(message: dict[str, Any]) -> bytes:
    """Return the frame of one message.

    Raises:
        FrameTooLarge: the message does not fit.
    """
    body = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_FRAME_BYTES:
        raise FrameTooLarge(len(body))
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class Decoder:
    """Splits a byte stream into messages; holds at most one unfinished frame and one read."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        """Start with nothing read."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield every message that `data` completes, in the order sent.

        Raises:
            FrameTooLarge: the peer announced a frame over the limit.
            ValueError: a body is no JSON object.
        """
        self._buffer += data
        while len(self._buffer) >= LENGTH_BYTES:
            size_bytes = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
            if size_bytes > MAX_FRAME_BYTES:
                raise FrameTooLarge(size_bytes)
            end = LENGTH_BYTES + size_bytes
            if len(self._buffer) < end:
                return
            message = json.loads(self._buffer[LENGTH_BYTES:end])
            del self._buffer[:end]
            if not isinstance(message, dict):
                raise ValueError("a frame must hold a JSON object")
            yield message


def to_wire(text: str) -> str:
    """Return text whose UTF-8 has the bytes of `text` in this process's encoding."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")
