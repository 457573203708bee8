"""Decides when the log repeats something that has not changed, for a person who watches it.

A silent wait looks like a hang, so the log repeats it every REMIND_MS. A wait that lasts, such as
that of a spare node, is repeated every LATER_MS. Pure: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum

REMIND_MS = 30_000
LATER_MS = 300_000
SOON_COUNT = 10
"""Repetitions after REMIND_MS each (5 minutes in all); the others come after LATER_MS each."""


class News(Enum):
    """Whether something has to be logged."""

    NEW = "new"
    """It differs from the last."""
    AGAIN = "again"
    """It has not changed, and was not logged for a while."""
    KNOWN = "known"
    """It was logged recently."""


class Reminder:
    """Remembers what was logged last, and when."""

    def __init__(self) -> None:
        """Begin with nothing logged."""
        self._key: Hashable | None = None
        self._logged_ms = 0
        self._repeated = 0
        """Repetitions of the same."""

    def forget(self) -> None:
        """Take whatever comes next as new."""
        self._key = None

    def judge(self, key: Hashable, now_ms: int) -> News:
        """Return whether to log what `key` stands for; assume that the caller does.

        Args:
            key: equal for what has not changed; never None.
            now_ms: monotonic time.
        """
        if key != self._key:
            self._key, self._logged_ms, self._repeated = key, now_ms, 0
            return News.NEW
        pause_ms = REMIND_MS if self._repeated < SOON_COUNT else LATER_MS
        if now_ms - self._logged_ms < pause_ms:
            return News.KNOWN
        self._logged_ms = now_ms
        self._repeated += 1
        return News.AGAIN
