"""Times of day, for people. Nothing is decided by them.

Journal time means nothing outside one coordinator, so what is shown is how long ago something was,
by the wall clock of now. That clock and journal time drift apart by fractions of a second, and a
time that was shown once must not change with every answer. So their distance is kept as long as it
is about right.
"""

from __future__ import annotations

import time

from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.wire import durations

DRIFT_MS_MAX = 500
"""How wrong a shown time may become before the distance of the two clocks is measured again."""


def wall_ms() -> int:
    """Return the Unix time in ms."""
    return time.time_ns() // 1_000_000


class _Distance:
    """How far journal time is behind Unix time."""

    ms: int | None = None
    """None until it was measured."""

    def measure(self, now_ms: int) -> int:
        """Return it; `now_ms` is journal time."""
        measured = wall_ms() - now_ms
        if self.ms is None or abs(measured - self.ms) > DRIFT_MS_MAX:
            self.ms = measured
        return self.ms


_distance = _Distance()


def to_timestamp(at_ms: int, now_ms: int) -> Timestamp:
    """Return the time of day of an event; both are journal time."""
    return durations.to_timestamp(_distance.measure(now_ms) + at_ms)


def to_optional_timestamp(at_ms: int | None, now_ms: int) -> Timestamp | None:
    """Return the time of day of an event that may not have happened."""
    return None if at_ms is None else to_timestamp(at_ms, now_ms)
