"""A journal in memory: nothing is kept, so a coordinator that starts again remembers nothing."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.interface import SECRET_BYTES, Loaded


class MemoryJournal:
    """A journal that drops its records."""

    is_durable = False
    length = 0
    size = 0

    def __init__(self, identity: str) -> None:
        """Belong to the coordinator with the id `identity`."""
        self.identity = identity
        self.secret = secrets.token_bytes(SECRET_BYTES)

    async def load(self) -> Loaded:
        """Return nothing."""
        return Loaded(())

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Drop a batch."""

    async def compact(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Do nothing: there is nothing to replace."""

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""
