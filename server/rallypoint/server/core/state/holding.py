"""How much memory the keys and barriers of jobs take, and how many jobs there are.

A process may serve several shards, each with a separate state. Its memory belongs to all of them,
so what there may be only so much of is counted together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from rallypoint.server.core.model.barrier import (
    Arrival,
    Barrier,
    BarrierKey,
    Expected,
    Participant,
)
from rallypoint.server.core.model.ids import JobId

ARRIVAL_BYTES = 512
"""Memory of an arrival, besides the bytes of its names and its payload."""
COUNTED_BYTES = 256
"""Memory of an arrival whose generation has ended, if nothing else of it is remembered."""
NAME_BYTES = 128
"""Memory of an expected participant, besides the bytes of its name."""
BARRIER_BYTES = 1_024
"""Memory of a barrier, besides its arrivals and its expected participants."""


class _Weight(Struct, frozen=True):
    """What a barrier weighs."""

    open: int
    """Its open generation."""
    ended: int
    """The generations that have ended, as far as they are remembered."""

    @property
    def whole(self) -> int:
        return self.open + self.ended + BARRIER_BYTES


_NOTHING = _Weight(0, 0)


class Holding(Struct):
    """What the jobs of one state hold."""

    jobs: int = 0
    keys: int = 0
    """Bytes of the keys of all jobs, about."""
    barriers: int = 0
    """Bytes of the barriers of all jobs, about."""
    of_jobs: dict[JobId, int] = field(default_factory=dict)
    """Bytes of the barriers of each job that has any."""
    of_barriers: dict[BarrierKey, _Weight] = field(default_factory=dict)

    def ended_of(self, key: BarrierKey) -> int:
        """Return what the remembered ends of a barrier weigh."""
        return self.of_barriers.get(key, _NOTHING).ended

    def weigh(
        self,
        barrier: Barrier,
        added: Iterable[tuple[Participant, Arrival]],
        counted: Mapping[Participant, tuple[str, int]] | None,
    ) -> None:
        """Weigh a barrier after a change.

        Args:
            barrier: as it is now.
            added: who has arrived at its open generation since it was weighed.
            counted: who has arrived at generations that have ended, as in `State.counted`; None:
                it remembers the same ends as before.
        """
        before = self.of_barriers.get(barrier.key, _NOTHING)
        weight = 0
        if barrier.is_open:
            weight = before.open or size_of_opening(barrier.key, barrier.expected)
            weight += sum(size_of_arrival(who, one) for who, one in added)
        ended = before.ended
        if counted is not None:
            ended = sum(size_of_arrival(*one) for end in barrier.ends for one in end.arrivals)
            ended += sum(size_of_counted(who, one[0]) for who, one in counted.items())
        self._put(barrier.key, _Weight(weight, ended))

    def drop(self, key: BarrierKey) -> None:
        """Forget a barrier."""
        self._put(key, None)

    def _put(self, key: BarrierKey, weight: _Weight | None) -> None:
        before = self.of_barriers.get(key)
        gain = (0 if weight is None else weight.whole) - (0 if before is None else before.whole)
        self.barriers += gain
        of_job = self.of_jobs.get(key.job_id, 0) + gain
        if of_job:
            self.of_jobs[key.job_id] = of_job
        else:
            self.of_jobs.pop(key.job_id, None)
        if weight is None:
            self.of_barriers.pop(key, None)
        else:
            self.of_barriers[key] = weight


class Together(Struct):
    """What all states of a process hold."""

    parts: list[Holding] = field(default_factory=list)

    def remove(self, part: Holding) -> None:
        """Remove what a state holds that is served no more."""
        self.parts[:] = [one for one in self.parts if one is not part]

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return sum(part.jobs for part in self.parts)

    @property
    def weight(self) -> int:
        """How many bytes all keys and barriers take, about."""
        return sum(part.keys + part.barriers for part in self.parts)


def size_of_arrival(who: Participant, arrival: Arrival) -> int:
    """Return how much memory an arrival takes, about, in bytes."""
    names = len(who.name.encode()) + len(arrival.request_id)
    return ARRIVAL_BYTES + names + len(arrival.payload)


def size_of_counted(who: Participant, request_id: str) -> int:
    """Return what remains of an arrival when nothing else is remembered, about, in bytes."""
    return COUNTED_BYTES + len(who.name.encode()) + len(request_id)


def size_of_opening(key: BarrierKey, expected: Expected) -> int:
    """Return how much memory a barrier takes while it is open, besides its arrivals."""
    names = sum(NAME_BYTES + len(one.name.encode()) for one in expected.participants)
    return len(key.name.encode()) + names
