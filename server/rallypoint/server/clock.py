"""Journal time: milliseconds that never run backwards and can be held back.

A coordinator that was stopped, or that waited for its disk, must not take its own absence for the
silence of everybody else. It holds its clock back by the time it was away, which moves every
deadline by the same amount.
"""

from __future__ import annotations

import time


class JournalClock:
    """Milliseconds since an origin, less the time that the coordinator was stalled."""

    def __init__(self, origin_ms: int = 0) -> None:
        """Begin at `origin_ms` now."""
        self._origin_ns = time.monotonic_ns() - origin_ms * 1_000_000
        self._held_ms = 0

    def now_ms(self) -> int:
        """Return journal time."""
        return (time.monotonic_ns() - self._origin_ns) // 1_000_000 - self._held_ms

    def hold_back(self, stalled_ms: int) -> None:
        """Take `stalled_ms` out of journal time."""
        self._held_ms += stalled_ms
