"""What the coordinator asks of a journal.

The coordinator appends the records of a turn in one batch, and only when `append` has returned does
anyone see what they decided. A store raises `JournalFailed` when it cannot promise that the batch
will be there after a crash; the coordinator then shows nothing and says NOT_SERVING.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rallypoint.server.core.replay import JournalRecord

COMPACT_AFTER = 10_000
"""Records after which the coordinator replaces the journal by a snapshot: about 3,000 rounds."""


class JournalFailed(Exception):
    """A batch could not be made durable."""


class Journal(Protocol):
    """A store of records, in the order in which they were appended."""

    @property
    def identity(self) -> str:
        """Identifier of the coordinator that the journal belongs to; never changes."""

    @property
    def is_durable(self) -> bool:
        """Whether the records survive the process."""

    @property
    def length(self) -> int:
        """Records that a load would return."""

    async def load(self) -> Sequence[JournalRecord]:
        """Return all records, oldest first.

        Raises:
            JournalFailed: when a record other than a torn last one cannot be read.
        """

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Add a batch, all of it or nothing.

        Args:
            records: at least one, in order.
            now_ms: journal time of the batch; not lower than that of the batch before.

        Raises:
            JournalFailed: when the batch is not durable.
        """

    async def compact(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Replace everything by `records`, which amount to the same; all or nothing.

        Raises:
            JournalFailed: when nothing was replaced.
        """
