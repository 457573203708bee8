"""Barriers of many names: how fast a job may open them.

A barrier may name 1,024 participants of 253 bytes each. Until they are read, counted and in the
journal, all other jobs wait. So the first participant of such a barrier draws on an allowance of
its job. The others say the same names, which are compared and not read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rallypoint.server.access.usage.allowances import JobBytes
from rallypoint.server.api.barriers.messages import count_named, is_same, to_participant
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.barrier import (
    PARTICIPANTS_MAX,
    Barrier,
    BarrierKey,
    Expected,
    ParticipantKind,
)
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.holding import NAME_BYTES
from rallypoint.server.core.state.state import State
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2

SMALL_MAX = 64
"""Participants that any arrival may name. To read them takes less time than the rest of a call."""
BYTES_PER_S_MAX = 1_048_576
"""Of the names with which a job opens barriers; each counts `NAME_BYTES` beside its own.
That is 3 barriers a second of 1,024 of the longest names, 8 of 1,024 ranks, or 64 of 128 ranks."""
BURST_S = 4.0
"""A job that has opened none for so long may open as many at once as in that time."""
LATEST_MAX = 16
"""Barriers whose names are kept while they are opened, and after that for arrivals that are sent
again: 6 MB of the longest names."""


def is_large(expected: barrier_pb2.Expected) -> bool:
    """Return whether names take long to read. Too many do not: their number alone is refused."""
    return SMALL_MAX < count_named(expected) <= len(ParticipantKind) * PARTICIPANTS_MAX


class Openings:
    """The barriers of many names that have been opened lately."""

    def __init__(self, state: State) -> None:
        """Begin with every allowance full; `state` is the live state."""
        self._state = state
        self._names = JobBytes(Limit.BARRIER_NAMES, BYTES_PER_S_MAX, BURST_S * BYTES_PER_S_MAX)
        self._latest: dict[BarrierKey, Expected] = {}
        """The oldest first."""
        self._opening: set[BarrierKey] = set()
        """Barriers whose first arrival has no turn yet."""

    def find(self, request: barrier_pb2.ArriveRequest, key: BarrierKey) -> Expected | None:
        """Return who is expected, if the request says the same as the one that has opened its
        barrier; None: it may open one.

        Raises:
            InvalidMessage: when it has no participant.
        """
        barrier = self._state.barriers.get(key.job_id, {}).get(key) or Barrier(key, 0)
        known = barrier.expected if barrier.is_open else self._latest.get(key)
        if known is None or not is_same(request.expected, known):
            return None
        if not barrier.is_open and key not in self._opening:
            mine = to_participant(request.participant)
            if not any(end.has(mine, request.request_id) for end in barrier.ends):
                return None
        return known

    def pay(self, job_id: JobId, expected: barrier_pb2.Expected, now_s: float) -> None:
        """Let the allowance of a job pay for a barrier.

        Args:
            job_id: the job, which exists.
            expected: names participants, and was not checked.
            now_s: monotonic time.

        Raises:
            LimitExceeded: when it is used up.
        """
        self._names.use(job_id, expected.ByteSize() + NAME_BYTES * count_named(expected), now_s)

    @contextmanager
    def opening(self, key: BarrierKey, expected: Expected) -> Iterator[None]:
        """Let others arrive at a barrier that is opened in the context."""
        self._latest.pop(key, None)
        self._latest[key] = expected
        if len(self._latest) > LATEST_MAX:
            del self._latest[next(iter(self._latest))]
        self._opening.add(key)
        try:
            yield
        finally:
            self._opening.discard(key)
