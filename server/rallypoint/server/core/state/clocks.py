"""How far journal time is behind Unix time, now and before. For people: nothing is decided by it.

Journal time leaves stalls out, so the distance grows with each. What happened before a stall keeps
its time of day, also after a restart: the journal has every distance that was measured.
"""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct, field

from rallypoint.server.core.messages.records import ClockMeasured

DRIFT_MS_MAX = 500
"""How wrong a shown time may become before the distance of the two clocks is measured again."""
DISTANCES_MAX = 1_024
"""Distances that are remembered: one more with every stall, and whenever the clock is set."""


class Clocks(Struct):
    """What was measured; the first measurement holds for all time before it."""

    since_ms: list[int] = field(default_factory=list)
    """Journal time from which each distance holds, ascending."""
    distances_ms: list[int] = field(default_factory=list)

    def measure(self, now_ms: int, unix_ms: int) -> list[ClockMeasured]:
        """Compare the clocks; return the record of a new distance, if it is one.

        Args:
            now_ms: journal time.
            unix_ms: the same moment by the wall clock.
        """
        record = ClockMeasured(now_ms, unix_ms)
        if self._is_known(record):
            return []
        self.take(record)
        return [record]

    def take(self, record: ClockMeasured) -> None:
        """Let a distance hold from its measurement on, unless it is that of before."""
        if self._is_known(record):
            return
        distance_ms = record.unix_ms - record.at_ms
        at_ms = record.at_ms
        if self.since_ms and at_ms <= self.since_ms[-1]:  # the clock was set again at once
            at_ms = self.since_ms.pop()
            del self.distances_ms[-1]
            if self._is_known(record):  # it was set back; a replay of `records` ends here, too
                return
        self.since_ms.append(at_ms)
        self.distances_ms.append(distance_ms)
        if len(self.since_ms) > DISTANCES_MAX:
            del self.since_ms[0], self.distances_ms[0]

    def _is_known(self, record: ClockMeasured) -> bool:
        if not self.distances_ms:
            return False
        return abs(record.unix_ms - record.at_ms - self.distances_ms[-1]) <= DRIFT_MS_MAX

    def find(self, at_ms: int) -> int | None:
        """Return the distance at a journal time, at least the oldest one; None: none is known."""
        if not self.distances_ms:
            return None
        return self.distances_ms[max(0, bisect_right(self.since_ms, at_ms) - 1)]

    def records(self) -> list[ClockMeasured]:
        """Return the records that lead to these distances."""
        known = zip(self.since_ms, self.distances_ms, strict=True)
        return [ClockMeasured(at_ms, at_ms + distance_ms) for at_ms, distance_ms in known]

    def copy(self) -> Clocks:
        """Return an independent copy."""
        return Clocks(list(self.since_ms), list(self.distances_ms))
