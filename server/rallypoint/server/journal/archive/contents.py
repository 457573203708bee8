"""What a store holds, whatever it is: one journal, or one for each shard."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct


class Contents(Struct, frozen=True, kw_only=True):
    """All journals of a store, as of one moment."""

    identity: str
    """Id of the coordinator that they belong to: 32 hexadecimal digits."""
    secret: bytes
    """From which the coordinator derives its tokens: SECRET_BYTES bytes."""
    journals: tuple[tuple[bytes, ...], ...]
    """The batches of each journal as the store holds them, oldest first; each batch is a
    `rallypoint.journal.v1.Batch`."""
    is_sharded: bool = False
    """Each journal is that of a shard, by its number. Else there is one, of all jobs."""

    @property
    def shard_count(self) -> int:
        """Number of shards; 0 when the store has none."""
        return len(self.journals) if self.is_sharded else 0

    @property
    def batches(self) -> int:
        """Number of batches."""
        return sum(map(len, self.journals))

    @property
    def size(self) -> int:
        """Bytes of the batches."""
        return sum(len(payload) for payloads in self.journals for payload in payloads)

    def named(self, name: str) -> Iterator[tuple[str, tuple[bytes, ...]]]:
        """Yield what each journal is called in messages, and its batches.

        Args:
            name: of the store.
        """
        for shard, payloads in enumerate(self.journals):
            yield f"{name}: shard {shard}" if self.is_sharded else name, payloads
