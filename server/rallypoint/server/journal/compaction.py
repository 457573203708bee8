"""Decides when a coordinator replaces the records of its journal by a snapshot. Pure.

A start reads all records, so their number has a limit. A snapshot that is itself large is not made
again before as much has happened as it holds.

The jobs of a shard whose owner may change wait while the next owner reads its records, and that
takes several shards at a time. So these are fewer, as long as the snapshots of the shard are not
most of what is written. A new owner does not know how long the last one was. It lets its agents
return first, and makes one if the journal is short.
"""

from __future__ import annotations

COMPACT_AFTER = 5_000
"""Records: some 500 rounds of a job. A start reads them in a quarter of a second."""
SHARED_COMPACT_AFTER = 1_000
"""The same of a shard whose owner may change, if they hold twice the bytes of the last snapshot."""
SETTLED_AFTER = 250
"""Records with which a new owner begins before its first snapshot: agents return."""
SHORT_BYTES = 1_048_576
"""Longest journal of which a new owner makes a snapshot early: it takes some tens of ms."""
COMPACT_ABOVE = 4_194_304
"""Bytes of the records above which they are replaced as well: some 100 rounds of 1,024 nodes. The
files take up to four times as much, with the snapshot, its successor and the WAL."""


class Compaction:
    """When the next snapshot of one journal is due."""

    def __init__(self, length: int, size: int, *, is_shared: bool) -> None:
        """Begin a life of the coordinator.

        Args:
            length: number of records that it begins with.
            size: bytes that they take.
            is_shared: whether the journal is that of a shard whose owner may change.
        """
        self._after, self._above = COMPACT_AFTER, COMPACT_ABOVE
        self._is_shared = is_shared
        # For an early snapshot, both have to be exceeded.
        self._early_after = max(SHARED_COMPACT_AFTER, length + SETTLED_AFTER)
        self._early_above = 0 if size <= SHORT_BYTES else COMPACT_ABOVE
        self._length = length

    def is_due(self, length: int, size: int) -> bool:
        """Return whether a journal of so many records and bytes needs a snapshot."""
        if length < self._length:  # one that was being written has replaced them
            self.note(length, size)
        self._length = length
        is_early = length > self._early_after and size > self._early_above
        return (self._is_shared and is_early) or length > self._after or size > self._above

    def note(self, length: int, size: int) -> None:
        """Note a snapshot, or an attempt: the journal has so many records and bytes now."""
        self._length = length
        self._after, self._above = max(COMPACT_AFTER, 2 * length), max(COMPACT_ABOVE, 2 * size)
        self._early_after = max(SHARED_COMPACT_AFTER, 2 * length)
        self._early_above = 2 * size
