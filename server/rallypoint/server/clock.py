"""Journal time: milliseconds that never run backwards and can be held back.

A coordinator that was suspended, or waited for its disk, received no heartbeats meanwhile. It holds
its clock back by the length of the stall, so every deadline moves by the same amount.
"""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Return the Unix time in ms."""
    return time.time_ns() // 1_000_000


class JournalClock:
    """Milliseconds since an origin, without the time that the coordinator was stalled."""

    def __init__(self, origin_ms: int = 0) -> None:
        """Start at `origin_ms`."""
        self._origin_ns = time.monotonic_ns() - origin_ms * 1_000_000
        self._held_ms = 0

    def now_ms(self) -> int:
        """Return journal time."""
        return (time.monotonic_ns() - self._origin_ns) // 1_000_000 - self._held_ms

    def hold_back(self, stalled_ms: int) -> None:
        """Leave `stalled_ms` out of journal time."""
        self._held_ms += stalled_ms
