"""Times of day, for people. Nothing is decided by them.

Journal time means nothing outside one coordinator. How far it is behind the wall clock is measured
in every turn and journalled, so a time that was shown once does not change: not with every answer,
not with a stall, and not with a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.server.clock import wall_ms
from rallypoint.server.core.state.clocks import Clocks
from rallypoint.wire import durations


class Distances:
    """How far the journal time of one coordinator, or of one shard, is behind Unix time."""

    def __init__(self) -> None:
        """Know nothing: times of day count from the wall clock of now."""
        self._clocks = Clocks()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let these count while the context is open, in the task that has opened it."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def follow(self, clocks: Clocks) -> None:
        """Count from what a coordinator measures."""
        self._clocks = clocks

    def find(self, at_ms: int) -> int | None:
        """Return the distance at a journal time; None when nothing was measured."""
        return self._clocks.find(at_ms)


_current = ContextVar("distances", default=Distances())  # noqa: B039  # shared on purpose
"""Those of the only journal of this process; each shard has its own."""


def current_distances() -> Distances:
    """Return those that count here."""
    return _current.get()


def to_timestamp(at_ms: int, now_ms: int) -> Timestamp:
    """Return the time of day of an event; both are journal time."""
    distance_ms = _current.get().find(at_ms)
    return durations.to_timestamp(
        at_ms + (wall_ms() - now_ms if distance_ms is None else distance_ms)
    )


def to_unix_ms(at_ms: int) -> int:
    """Return the time of day of an event in ms, as `to_timestamp` shows it."""
    return at_ms + (_current.get().find(at_ms) or 0)


def to_optional_timestamp(at_ms: int | None, now_ms: int) -> Timestamp | None:
    """Return the time of day of an event that may not have happened."""
    return None if at_ms is None else to_timestamp(at_ms, now_ms)
