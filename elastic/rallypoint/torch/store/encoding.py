"""How torch's keys are named at the coordinator, and what they hold there.

torch's keys may hold anything; those of the contract are printable, have no spaces and are short.
What they may not hold is written as in an address, "%20" for a space; so is "%" itself, so no two
keys get the same name. A key that is too long gets a digest for a name.

A short value is held as it is, so numbers can be added to and other programs can read it. A long
one is held in parts, which are keys too and never change; the key then says which they are, and
holds what was appended since. Such a record begins with a mark, and so does a short value that
begins like one, or would if something was appended to it.

A queue is one value: each entry after its length. An empty queue does not exist, so waiting for a
key is waiting for an entry.
"""

from __future__ import annotations

import re
import struct
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import unquote

NAME_BYTES_MAX = 512
"""Longest key of the contract."""
PREFIX_BYTES_MAX = 128
"""Longest prefix of a store: it leaves room for a digest."""
DIGEST_MARK = "%long-"
"""No escaped key begins with it: the letters after "%" are hexadecimal there."""
_DIGEST_BYTES = 32
PART_BYTES = 65_536
"""Longest value of the contract."""
VALUE_BYTES_MAX = 8 * 1_048_576
"""Longest value of a key. The keys of a job have 32 MiB together."""
MARK = b"\0rallypoint\0"
_PLAIN, _PARTED = b"=", b"+"
_RECORD = struct.Struct(">16sQ")
_LENGTH = struct.Struct(">I")
NUMBER_MIN, NUMBER_MAX = -(2**63), 2**63 - 1
"""What fits into 64 bits."""
_NUMBER = re.compile(rb"[ \t\n\v\f\r]*([+-]?[0-9]+)")


def encode_key(key: str, bytes_max: int) -> str:
    """Return the name of a key.

    Args:
        key: any text.
        bytes_max: longest name in bytes, at least 128.
    """
    name = "".join(one if _is_plain(one) else _escape(one) for one in key) or "%"
    if len(name.encode()) <= bytes_max:
        return name
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)
    return DIGEST_MARK + digest.hexdigest()


def is_digest(name: str) -> bool:
    """Return whether the key cannot be read from its name."""
    return name.startswith(DIGEST_MARK)


def decode_key(name: str) -> str:
    """Return the key with this name, which is not a digest."""
    return "" if name == "%" else unquote(name, errors="surrogatepass")


def _is_plain(one: str) -> bool:
    return one.isprintable() and one not in " %"


def _escape(one: str) -> str:
    return "".join(f"%{byte:02x}" for byte in one.encode("utf-8", "surrogatepass"))


class Parted(NamedTuple):
    """Where a long value is."""

    token: bytes
    """Names its parts: 16 random bytes."""
    size: int
    """Bytes of the value in parts."""
    tail: bytes = b""
    """What follows the parts."""

    @property
    def part_count(self) -> int:
        """How many parts it has."""
        return -(-self.size // PART_BYTES)

    def names(self) -> list[str]:
        """Return the names of the parts, in order."""
        return [f"{self.token.hex()}/{number}" for number in range(self.part_count)]

    def pack(self) -> bytes:
        """Return what the key holds."""
        return MARK + _PARTED + _RECORD.pack(self.token, self.size) + self.tail


def pack_short(value: bytes) -> bytes | None:
    """Return what a key holds for a short value; None: it is not short."""
    held = MARK + _PLAIN + value if _is_like_a_record(value) else value
    return held if len(held) <= PART_BYTES else None


def can_be_appended(value: bytes) -> bool:
    """Return whether a value may be appended to whatever a key holds, without a look at it."""
    return len(value) <= PART_BYTES and not _is_like_a_record(value)


def _is_like_a_record(value: bytes) -> bool:
    """Return whether a value begins with the mark, or would when more follows it."""
    return value.startswith(MARK) or (value != b"" and MARK.startswith(value))


def unpack(held: bytes) -> bytes | Parted:
    """Return the value that a key holds, or where it is."""
    if not held.startswith(MARK):
        return held
    kind, rest = held[len(MARK) : len(MARK) + 1], held[len(MARK) + 1 :]
    if kind == _PLAIN:
        return rest
    token, size = _RECORD.unpack_from(rest)
    return Parted(token, size, rest[_RECORD.size :])


def split(value: bytes) -> list[bytes]:
    """Return the parts of a long value."""
    return [value[at : at + PART_BYTES] for at in range(0, len(value), PART_BYTES)]


def read_number(held: bytes | None) -> int:
    """Return the number that a value is for torch.

    It is read as C++ does: spaces before it, a sign, zeros, and whatever follows the digits. An
    empty value counts as 0.

    Raises:
        ValueError: when it is none.
    """
    if not held:
        return 0
    found = _NUMBER.match(held)
    if found is None:
        raise ValueError(f"the key holds no number: {held[:32]!r}")
    return int(found[1])


def pack_entry(value: bytes) -> bytes:
    """Return an entry of a queue."""
    return _LENGTH.pack(len(value)) + value


def cut_entry(held: bytes) -> tuple[bytes, bytes]:
    """Return the first value of a queue, and the queue without it."""
    (length,) = _LENGTH.unpack_from(held)
    end = _LENGTH.size + length
    return held[_LENGTH.size : end], held[end:]


def count_entries(held: bytes | None) -> int:
    """Return how many values a queue has."""
    entries = at = 0
    while held is not None and at < len(held):
        at += _LENGTH.size + _LENGTH.unpack_from(held, at)[0]
        entries += 1
    return entries
