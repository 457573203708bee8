"""A journal that keeps its records in memory, for tests that read them or start again from them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.memory.weights import weight_of
from rallypoint.server.journal.interface import SECRET_BYTES, Loaded


class RecordingJournal:
    """A list of records."""

    is_durable = True

    def __init__(self, identity: str) -> None:
        """Start empty."""
        self.identity = identity
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.records: list[JournalRecord] = []
        self.size = 0
        self._now_ms = 0
        self._unix_ms = 0

    @property
    def length(self) -> int:
        return len(self.records)

    async def load(self) -> Loaded:
        return Loaded(tuple(self.records), self._now_ms, self._unix_ms)

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        self.records.extend(records)
        self.size += sum(map(weight_of, records))
        self._note_time(now_ms)

    async def compact(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        self.records = list(records)
        self.size = sum(map(weight_of, records))
        self._note_time(now_ms)

    async def close(self) -> None:
        """Do nothing: the records are kept."""

    def _note_time(self, now_ms: int) -> None:
        self._now_ms, self._unix_ms = now_ms, time.time_ns() // 1_000_000
