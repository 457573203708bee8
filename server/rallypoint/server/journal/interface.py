"""The interface of a journal.

The coordinator appends the records of a turn in one batch. Their decisions become visible only when
`append` has returned. A store raises `JournalFailed` when it cannot promise that the batch survives
a crash; the coordinator then shows nothing and reports NOT_SERVING.

Today the only store lives in memory, and no coordinator calls `load`: after a restart it learns
from its agents. Tests and the simulation check that a replay of the records gives the state, so
this is the base for a durable store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rallypoint.server.core.reads.replay import JournalRecord

COMPACT_AFTER = 10_000
"""Records after which the coordinator compacts the journal to a snapshot: about 3,000 rounds."""


COMPACT_ABOVE = 67_108_864
"""Bytes of keys, values and payloads in its records above which it is compacted as well."""


class JournalFailed(Exception):
    """A batch could not be stored."""


class Journal(Protocol):
    """An ordered list of records."""

    @property
    def identity(self) -> str:
        """Id of the coordinator that the journal belongs to; never changes."""

    @property
    def is_durable(self) -> bool:
        """Whether the records outlive the process."""

    @property
    def length(self) -> int:
        """Number of records that `load` would return."""

    async def load(self) -> Sequence[JournalRecord]:
        """Return all records, oldest first.

        Raises:
            JournalFailed: when a record cannot be read, except for a last one that is incomplete.
        """

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Add a batch, all of it or nothing.

        Args:
            records: at least one, in order.
            now_ms: journal time; not lower than that of the batch before.

        Raises:
            JournalFailed: when the batch could not be stored.
        """

    async def compact(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Replace all records by a shorter list with the same meaning, all of it or nothing.

        Raises:
            JournalFailed: when the records could not be replaced; the old ones stay.
        """
