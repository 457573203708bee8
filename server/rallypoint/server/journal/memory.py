"""A journal in memory, lost with the process. All coordinators use it today.

Nothing loads it. It enforces that decisions are recorded before they are visible, and tests replay
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.server.core.reads.replay import JournalRecord


class MemoryJournal:
    """A list of records."""

    is_durable = False

    def __init__(self, identity: str) -> None:
        """Start empty, for the coordinator with the id `identity`."""
        self.identity = identity
        self._records: list[JournalRecord] = []

    @property
    def length(self) -> int:
        """Number of records that `load` would return."""
        return len(self._records)

    async def load(self) -> Sequence[JournalRecord]:
        """Return all records, oldest first."""
        return tuple(self._records)

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Add a batch."""
        self._records.extend(records)

    async def compact(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Replace all records."""
        self._records = list(records)
