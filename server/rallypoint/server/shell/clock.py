"""Journal time: milliseconds that never run backwards and can be held back.

It runs only while a coordinator is there. One that starts, or takes over, continues after the
latest batch of the journal, whatever the wall clock says: what the one before has not written did
not pass. So no clock of any host ends a wait, and a fence can only become longer.

A coordinator that was suspended, or waited for its disk, received no heartbeats meanwhile. It holds
its clock back by the length of the stall, so every deadline moves by the same amount.
"""

from __future__ import annotations

import time

JUMP_MS = 60_000
"""A difference between the wall clock and journal time above this is logged."""


def continue_ms(last_ms: int) -> int:
    """Return when journal time continues after its latest batch.

    Times of day are measured again from then on, and those of the batch keep theirs.
    """
    return last_ms + 1


def wall_ms() -> int:
    """Return the Unix time in ms."""
    return time.time_ns() // 1_000_000


class JournalClock:
    """Milliseconds since an origin, without the time that the coordinator was stalled."""

    def __init__(self, origin_ms: int = 0) -> None:
        """Start at `origin_ms`."""
        self._origin_ns = time.monotonic_ns() - origin_ms * 1_000_000
        self._held_ms = 0
        self._ahead_ms: int | None = None
        """How far the wall clock was ahead of the monotonic clock."""

    def now_ms(self) -> int:
        """Return journal time."""
        return (time.monotonic_ns() - self._origin_ns) // 1_000_000 - self._held_ms

    def jumped_ms(self, unix_ms: int) -> int:
        """Return how far the wall clock was set since the last call; 0 at the first."""
        ahead_ms = unix_ms - time.monotonic_ns() // 1_000_000
        before_ms, self._ahead_ms = self._ahead_ms, ahead_ms
        return 0 if before_ms is None else ahead_ms - before_ms

    def hold_back(self, stalled_ms: int) -> None:
        """Leave `stalled_ms` out of journal time."""
        self._held_ms += stalled_ms
