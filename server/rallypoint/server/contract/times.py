"""Times of day, for people. Nothing is decided by them.

Journal time means nothing outside one coordinator. How far it is behind the wall clock is measured
in every turn and journalled, so a time that was shown once does not change: not with every answer,
not with a stall, and not with a restart.
"""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.server.core.state.clocks import Clocks
from rallypoint.server.shell.clock import wall_ms
from rallypoint.wire import durations


def to_timestamp(at_ms: int | None, clocks: Clocks, now_ms: int) -> Timestamp | None:
    """Return the time of day of an event; None for one that has not happened.

    Args:
        at_ms: journal time.
        clocks: of that journal; without any measurement, the wall clock of now counts.
        now_ms: journal time.
    """
    if at_ms is None:
        return None
    distance_ms = clocks.find(at_ms)
    return durations.to_timestamp(
        at_ms + (wall_ms() - now_ms if distance_ms is None else distance_ms)
    )
