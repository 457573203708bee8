"""The interface of a journal.

The coordinator appends the records of a turn in one batch. Their decisions become visible only when
`append` has returned. A store raises `JournalFailed` when it cannot promise that the batch survives
a crash; the coordinator then shows nothing and reports NOT_SERVING.

A store notes with each batch the wall clock's time. From it a coordinator that starts again knows
how much journal time has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from rallypoint.server.core.memory.replay import JournalRecord

SECRET_BYTES = 32


class JournalFailed(Exception):
    """A journal cannot be read or written. Its text is one line that says what to do."""


class JournalInUse(JournalFailed):
    """Another coordinator has the journal open."""


class JournalUnreadable(JournalFailed):
    """The journal is damaged, or a newer version has written it."""


class StoreMismatch(JournalFailed):
    """The store was made with another setting than that of the command line."""


class Loaded(Struct, frozen=True):
    """What a journal holds."""

    records: Sequence[JournalRecord]
    """Oldest first."""
    now_ms: int = 0
    """Journal time of the latest batch; 0 when there is none."""
    unix_ms: int = 0
    """When that was by the wall clock, as Unix time; 0 when there is none."""
    shards: int = 1
    """Journals into which the jobs of its store are divided, this one among them."""


class Journal(Protocol):
    """An ordered list of records."""

    @property
    def identity(self) -> str:
        """Id of the coordinator that the journal belongs to: 32 hexadecimal digits, for ever."""

    @property
    def secret(self) -> bytes:
        """From which the coordinator derives its tokens: SECRET_BYTES random bytes, for ever."""

    @property
    def is_durable(self) -> bool:
        """Whether the records outlive the process."""

    @property
    def length(self) -> int:
        """Number of records that `load` would return."""

    @property
    def size(self) -> int:
        """How many bytes they take, about."""

    async def load(self) -> Loaded:
        """Return all records; called once, before the first append.

        Raises:
            JournalUnreadable: when a record cannot be read. None is ever skipped.
            JournalFailed: when the store cannot be read.
        """

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Add a batch, all of it or nothing; it survives a crash once this returns.

        Args:
            records: at least one, in order.
            now_ms: journal time; not lower than that of the batch before.

        Raises:
            JournalFailed: when the batch could not be stored.
        """

    async def compact(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Replace all records by a shorter list with the same meaning, all of it or nothing.

        A store may do so after this has returned, beside further appends: until then the old
        records count, and the next append raises a failure. The records must not change.

        Raises:
            JournalFailed: when the records could not be replaced; the old ones stay.
        """

    async def close(self) -> None:
        """Release the store. Nothing is lost: every append that has returned is stored."""
