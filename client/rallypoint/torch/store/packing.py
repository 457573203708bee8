"""What a key holds at the coordinator.

A short value is held as it is, so numbers can be added to and other programs can read it. A long
one is held in parts, which are keys too and never change; the key then says which they are.
Such a record begins with a mark, and so does a short value that happens to begin like one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

PART_BYTES = 65_536
"""Longest value of the contract."""
VALUE_BYTES_MAX = 8 * 1_048_576
"""Longest value of a key. The keys of a job have 32 MiB together."""
MARK = b"\0rallypoint\0"
_PLAIN, _PARTED = b"=", b"+"
_RECORD = struct.Struct(">16sQ")


class Parted(NamedTuple):
    """Where a long value is."""

    token: bytes
    """Names its parts: 16 random bytes."""
    size: int
    """Bytes of the value."""

    @property
    def part_count(self) -> int:
        """How many parts it has."""
        return -(-self.size // PART_BYTES)

    def names(self) -> list[str]:
        """Return the names of the parts, in order."""
        return [f"{self.token.hex()}/{number}" for number in range(self.part_count)]

    def pack(self) -> bytes:
        """Return what the key holds."""
        return MARK + _PARTED + _RECORD.pack(self.token, self.size)


def pack_short(value: bytes) -> bytes | None:
    """Return what a key holds for a short value; None: it is not short."""
    held = MARK + _PLAIN + value if value.startswith(MARK) else value
    return held if len(held) <= PART_BYTES else None


def unpack(held: bytes) -> bytes | Parted:
    """Return the value that a key holds, or where it is."""
    if not held.startswith(MARK):
        return held
    kind, rest = held[len(MARK) : len(MARK) + 1], held[len(MARK) + 1 :]
    return rest if kind == _PLAIN else Parted(*_RECORD.unpack(rest))


def split(value: bytes) -> list[bytes]:
    """Return the parts of a long value."""
    return [value[at : at + PART_BYTES] for at in range(0, len(value), PART_BYTES)]
