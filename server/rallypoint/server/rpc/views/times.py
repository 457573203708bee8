"""Wall-clock times, for people: nothing is decided by them."""

from __future__ import annotations

import time

from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.wire import durations


def to_timestamp(at_ms: int, now_ms: int) -> Timestamp:
    """Return when something happened, by the coordinator's wall clock.

    Journal time leaves out what the coordinator was stalled, so only the age of what happened is
    taken from it.

    Args:
        at_ms: journal time at which it happened.
        now_ms: journal time now.
    """
    return durations.to_timestamp(max(0, wall_ms() - (now_ms - at_ms)))


def wall_ms() -> int:
    """Return the Unix time in ms."""
    return time.time_ns() // 1_000_000
