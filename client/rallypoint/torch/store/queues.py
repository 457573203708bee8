"""A queue is one value: each entry after its length. An empty queue does not exist.

So waiting for a key is waiting for an entry.
"""

from __future__ import annotations

import struct

_LENGTH = struct.Struct(">I")


def pack(value: bytes) -> bytes:
    """Return an entry."""
    return _LENGTH.pack(len(value)) + value


def cut(held: bytes) -> tuple[bytes, bytes]:
    """Return the first value of a queue, and the queue without it."""
    end = _end(held, 0)
    return held[_LENGTH.size : end], held[end:]


def count(held: bytes | None) -> int:
    """Return how many values a queue has."""
    entries = at = 0
    while held is not None and at < len(held):
        at = _end(held, at)
        entries += 1
    return entries


def _end(held: bytes, at: int) -> int:
    (length,) = _LENGTH.unpack_from(held, at)
    return at + _LENGTH.size + int(length)
