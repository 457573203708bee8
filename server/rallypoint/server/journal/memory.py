"""A journal in memory, lost with the process.

It enforces that decisions are recorded before they are visible. A coordinator that starts again in
the same process may load it, as tests do.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from rallypoint.server.core.reads.replay import JournalRecord
from rallypoint.server.core.reads.weights import weight_of
from rallypoint.server.journal.interface import SECRET_BYTES, Loaded


class MemoryJournal:
    """A list of records."""

    is_durable = False

    def __init__(self, identity: str) -> None:
        """Start empty, for the coordinator with the id `identity`."""
        self.identity = identity
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._records: list[JournalRecord] = []
        self._size = 0
        self._now_ms = 0
        self._unix_ms = 0

    @property
    def length(self) -> int:
        """Number of records that `load` would return."""
        return len(self._records)

    @property
    def size(self) -> int:
        """How many bytes they take, about."""
        return self._size

    async def load(self) -> Loaded:
        """Return all records."""
        is_new = self._unix_ms == 0
        return Loaded(tuple(self._records), self._now_ms, self._unix_ms, is_new)

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Add a batch."""
        self._records.extend(records)
        self._size += sum(map(weight_of, records))
        self._note_time(now_ms)

    async def compact(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Replace all records."""
        self._records = list(records)
        self._size = sum(map(weight_of, records))
        self._note_time(now_ms)

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _note_time(self, now_ms: int) -> None:
        self._now_ms, self._unix_ms = now_ms, time.time_ns() // 1_000_000
