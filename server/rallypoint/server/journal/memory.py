"""A journal that lives as long as the process: for tests, `--standalone`, and a coordinator whose
agents are memory enough."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.server.core.replay import JournalRecord


class MemoryJournal:
    """A list of records."""

    is_durable = False

    def __init__(self, identity: str) -> None:
        """Begin empty; `identity` is drawn by whoever starts the coordinator."""
        self.identity = identity
        self._records: list[JournalRecord] = []

    @property
    def length(self) -> int:
        """Records that a load would return."""
        return len(self._records)

    async def load(self) -> Sequence[JournalRecord]:
        """Return all records, oldest first."""
        return tuple(self._records)

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Add a batch."""
        self._records.extend(records)

    async def compact(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Replace everything by `records`."""
        self._records = list(records)
