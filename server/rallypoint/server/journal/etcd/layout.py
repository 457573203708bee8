"""The keys of a store in etcd, and the value that says what a journal holds.

    PREFIX/format, identity, secret, shard_count          written once, together
    PREFIX/import                                         of the import that has filled the store
    PREFIX/live/…                                         members and owners, until a lease ends
    PREFIX/shards/SHARD/head                              what the journal holds
    PREFIX/shards/SHARD/batches/GENERATION/NUMBER/PART    a batch, in parts that fit in a request

Only what the head names exists. A batch is written with the head, in one transaction; parts of a
large one come before it, and are nothing until the head names their batch. A snapshot is a new
generation: it exists when the head names it, and the same transaction deletes the one before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from rallypoint.server.journal.interface import JournalUnreadable

FORMAT = 1
"""Of keys and heads. A higher one was written by a newer version, and is refused."""
IMPORTING = "importing"
"""The format of a store that an import has begun to fill. No coordinator starts on it."""
PART_BYTES = 1_200_000
"""Of one part. etcd takes requests of 1.5 MiB, with keys and conditions."""
PARTS_MAX = 1_024
"""Of one batch: 1 GB is more than a coordinator can hold in memory."""
DIGEST_BYTES = 16


class Head(Struct, frozen=True):
    """What a journal holds, as JSON."""

    format: int = FORMAT
    life: str = ""
    """Random: each start of an owner draws another, so that a late write of the last one fails."""
    generation: int = 0
    """Of the batches: one more with each snapshot."""
    next: int = 0
    """Number of the next batch; those before it exist."""
    records: int = 0
    """Number of records in them."""
    size: int = 0
    """Bytes of the batches."""
    digest: str = ""
    """Chain over all batches of the generation, in hexadecimal digits."""

    def encode(self) -> bytes:
        """Return the value of the head's key."""
        return msgspec.json.encode(self)

    def extended(self, payload: bytes, records: int) -> Head:
        """Return the head after one more batch."""
        return msgspec.structs.replace(
            self,
            next=self.next + 1,
            records=self.records + records,
            size=self.size + len(payload),
            digest=chain(self.digest, payload),
        )


def decode_head(value: bytes, shard: int) -> Head:
    """Read the value of a head's key.

    Raises:
        JournalUnreadable: when it is damaged, or from a newer version.
    """
    try:
        format = msgspec.json.decode(value, type=_Format).format
        if format == FORMAT:
            return msgspec.json.decode(value, type=Head)
    except msgspec.MsgspecError as error:
        raise JournalUnreadable(f"shard {shard} in etcd is damaged: restore a backup") from error
    raise JournalUnreadable(newer(format))


class _Format(Struct):
    format: int


def newer(format: int) -> str:
    """Return the line for a store with a format that this version does not know."""
    return (
        f"a newer rallypoint wrote this store (format {format}; this one reads {FORMAT}):"
        " upgrade this coordinator"
    )


def chain(digest: str, payload: bytes) -> str:
    """Return the digest of a chain with one more payload."""
    longer = hashlib.blake2b(bytes.fromhex(digest), digest_size=DIGEST_BYTES)
    longer.update(payload)
    return longer.hexdigest()


def head_key(prefix: str, shard: int) -> bytes:
    """Return the key of a shard's head."""
    return f"{prefix}/shards/{shard:04d}/head".encode()


def batches_prefix(prefix: str, shard: int) -> bytes:
    """Return what the keys of all batches of a shard begin with."""
    return f"{prefix}/shards/{shard:04d}/batches/".encode()


def generation_prefix(prefix: str, shard: int, generation: int) -> bytes:
    """Return what the keys of a generation begin with."""
    return batches_prefix(prefix, shard) + b"%08x/" % generation


def batch_prefix(prefix: str, shard: int, generation: int, number: int) -> bytes:
    """Return what the keys of a batch begin with."""
    return generation_prefix(prefix, shard, generation) + b"%012x/" % number


def split(batch: bytes, payload: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of each part of a batch, at least one.

    Args:
        batch: what its keys begin with.
        payload: at most PARTS_MAX parts.
    """
    for part in range(max(1, -(-len(payload) // PART_BYTES))):
        yield batch + b"%04x" % part, payload[part * PART_BYTES : (part + 1) * PART_BYTES]
