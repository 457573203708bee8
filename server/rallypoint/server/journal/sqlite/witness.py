"""The witness: the last batch that was acknowledged, in a small file beside the database.

SQLite drops the end of its WAL without a word when a checksum there is wrong: it cannot tell a
damaged commit from one that a crash cut off. The witness can. It is written after each commit, so
a journal that ends before its witness has lost what was acknowledged, and is refused.

The file has two slots, written in turn and each with a checksum, so a crash in the middle of a
write leaves the other one. It is not synced: after a power cut it may be older than the journal,
which is no contradiction.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Self

from msgspec import Struct

from rallypoint.base.private_files import open_private
from rallypoint.server.journal.sqlite import errors
from rallypoint.server.journal.sqlite.chain import DIGEST_BYTES, Link

_MAGIC = b"rallypoint head\n"
_IDENTITY_BYTES = 16
_SEQUENCE_BYTES = 8
_CHECK_BYTES = 16
_BODY_BYTES = len(_MAGIC) + _IDENTITY_BYTES + _SEQUENCE_BYTES + DIGEST_BYTES
_SLOT_BYTES = 512
"""Distance of the slots: a disk writes a sector of this size whole, or not at all."""


class Mark(Struct, frozen=True):
    """What a slot holds."""

    identity: str
    """Of the journal."""
    link: Link
    """Its last batch that was acknowledged."""


class Witness:
    """The open file."""

    def __init__(self, path: Path, fd: int) -> None:
        """Take ownership of the descriptor, which is open for reading and writing."""
        self._path = path
        self._fd = fd

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file, or make an empty one.

        Raises:
            NotPrivate: when another user could write it.
            OSError: when the system refuses.
        """
        return cls(path, open_private(path, os.O_RDWR | os.O_CREAT))

    def read(self) -> Mark | None:
        """Return the newest slot; None for an empty file.

        Raises:
            JournalUnreadable: when neither slot is readable.
            OSError: when the file cannot be read.
        """
        content = os.pread(self._fd, 2 * _SLOT_BYTES, 0)
        if not content:
            return None
        slots = (content[:_SLOT_BYTES], content[_SLOT_BYTES:])
        marks = [mark for slot in slots if (mark := _parse(slot)) is not None]
        if not marks:
            raise errors.witness_damaged(self._path)
        return max(marks, key=lambda mark: mark.link.sequence)

    def write(self, mark: Mark) -> None:
        """Note that a batch is stored.

        Raises:
            OSError: when the system refuses.
        """
        os.pwrite(self._fd, _format(mark), mark.link.sequence % 2 * _SLOT_BYTES)

    def reset(self, mark: Mark) -> None:
        """Write both slots and sync them, so that a power cut leaves at least one from now on.

        Raises:
            OSError: when the system refuses.
        """
        slot = _format(mark).ljust(_SLOT_BYTES, b"\0")
        os.pwrite(self._fd, slot + slot, 0)
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _format(mark: Mark) -> bytes:
    sequence = mark.link.sequence.to_bytes(_SEQUENCE_BYTES, "big")
    body = _MAGIC + bytes.fromhex(mark.identity) + sequence + mark.link.digest
    return body + _check(body)


def _parse(slot: bytes) -> Mark | None:
    body, check = slot[:_BODY_BYTES], slot[_BODY_BYTES : _BODY_BYTES + _CHECK_BYTES]
    if check != _check(body):
        return None
    facts = body[len(_MAGIC) :]
    identity, facts = facts[:_IDENTITY_BYTES], facts[_IDENTITY_BYTES:]
    sequence = int.from_bytes(facts[:_SEQUENCE_BYTES], "big")
    return Mark(identity.hex(), Link(sequence, facts[_SEQUENCE_BYTES:]))


def _check(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:_CHECK_BYTES]
