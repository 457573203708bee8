"""Times of day, for people. Nothing is decided by them.

Journal time means nothing outside one coordinator, so what is shown is how long ago something was,
by the wall clock of now. That clock and journal time drift apart by fractions of a second, and a
time that was shown once must not change with every answer. So their distance is kept as long as it
is about right.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.wire import durations

DRIFT_MS_MAX = 500
"""How wrong a shown time may become before the distance of the two clocks is measured again."""
DISTANCES_MAX = 1_024
"""Distances that are remembered: one more with every stall, and whenever the clock is set."""


def wall_ms() -> int:
    """Return the Unix time in ms."""
    return time.time_ns() // 1_000_000


class Distances:
    """How far journal time is behind Unix time, now and before.

    The distance grows with every stall. What happened before a stall keeps its time of day.
    """

    def __init__(self) -> None:
        """Know nothing: the first measurement holds for all time before it."""
        self._since_ms: list[int] = []
        """Journal time from which each distance holds, ascending."""
        self._distances_ms: list[int] = []

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let these count while the context is open, in the task that has opened it."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def clear(self) -> None:
        """Forget all distances."""
        self._since_ms.clear()
        self._distances_ms.clear()

    def note(self, now_ms: int) -> None:
        """Measure the distance; `now_ms` is journal time."""
        measured = wall_ms() - now_ms
        if self._distances_ms and abs(measured - self._distances_ms[-1]) <= DRIFT_MS_MAX:
            return
        if self._since_ms and now_ms <= self._since_ms[-1]:  # the clock was set again at once
            self._distances_ms[-1] = measured
            return
        self._since_ms.append(now_ms)
        self._distances_ms.append(measured)
        if len(self._since_ms) > DISTANCES_MAX:
            del self._since_ms[0], self._distances_ms[0]

    def find(self, at_ms: int) -> int:
        """Return the distance at a journal time, at least the oldest that is known."""
        place = bisect_right(self._since_ms, at_ms) - 1
        return self._distances_ms[max(0, place)]


_current = ContextVar("distances", default=Distances())  # noqa: B039  # shared on purpose
"""Those of the only journal of this process; each shard has its own."""


def current_distances() -> Distances:
    """Return those that count here."""
    return _current.get()


def begin_time() -> None:
    """Forget all distances: a coordinator begins, whose journal time is another one."""
    _current.get().clear()


def note_time(now_ms: int) -> None:
    """Compare the clocks; called in every turn, so that times of day are right around a stall."""
    _current.get().note(now_ms)


def to_timestamp(at_ms: int, now_ms: int) -> Timestamp:
    """Return the time of day of an event; both are journal time."""
    distances = _current.get()
    distances.note(now_ms)
    return durations.to_timestamp(distances.find(at_ms) + at_ms)


def to_unix_ms(at_ms: int) -> int:
    """Return the time of day of an event in ms, as `to_timestamp` shows it; after `note_time`."""
    return _current.get().find(at_ms) + at_ms


def to_optional_timestamp(at_ms: int | None, now_ms: int) -> Timestamp | None:
    """Return the time of day of an event that may not have happened."""
    return None if at_ms is None else to_timestamp(at_ms, now_ms)
