"""The log of events: the latest of each job, and the latest of all.

The coordinator's state and a replay of its journal take the same events with the same code. What is
dropped is always the oldest event of its job. So one number for each job says which of its events
are lost, and one number says it for all jobs.

An event that its job has dropped stays in the list of all events, until half of that list is
dropped. So taking an event costs the same however many are kept, and reading finds its place by
bisection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.server.core.events.kinds import KINDS, EventKind
from rallypoint.server.core.model.ids import JobId

EVENTS_PER_JOB_MAX = 512
"""Events of a job that are kept."""
EVENTS_MAX = 200_000
"""Events of all jobs that are kept: about 100 MB."""
TEXT_MAX = 1_024
"""Characters of a text in an event."""
SEQUENCES_PER_EPOCH = 1_000
"""Sequences begin at the epoch times this. An epoch is a time in ms, so no coordinator that starts
again without memory counts through the sequences of an earlier one."""
_DROPPED_MAX = 1_024
"""Dropped events that the list of all events may hold, however short it is."""

Facts = tuple[tuple[str, str | int], ...]
"""Named values."""


class Event(Struct, frozen=True, gc=False):
    """Something that happened to a job."""

    sequence: int
    """Higher than that of every earlier event of any job."""
    job_id: JobId
    kind: EventKind
    reason: str
    """Its name in the log."""
    at_ms: int
    """Journal time."""
    epoch: int
    run: int
    """0 when the job was not known."""
    round: int
    """Number of the job's latest round; 0 for none."""
    facts: Facts

    def fact(self, name: str) -> str | int | None:
        """Return a fact, or None."""
        return next((value for key, value in self.facts if key == name), None)


class Emitted(NamedTuple):
    """An event that has no number yet."""

    job_id: JobId
    reason: str
    run: int
    round: int
    facts: Facts


class JobEvents(Struct):
    """The events of one job."""

    events: list[Event] = field(default_factory=list)
    """In order."""
    dropped: int = 0
    """Up to this sequence, some of its events may be dropped."""

    def copy(self) -> JobEvents:
        """Return a copy that later events leave as it is."""
        return JobEvents(self.events.copy(), self.dropped)


class Found(NamedTuple):
    """What a read has found."""

    events: list[Event]
    """In order."""
    looked_at: int
    """Everything up to this sequence was looked at."""


class EventLog(Struct, eq=False):
    """The events of all jobs. Only its own methods change it.

    Two logs are equal when no reader can tell them apart: dropped events that are still in the list
    do not count.
    """

    last: int = 0
    """The highest sequence that was given; before the first event, the one before it."""
    dropped: int = 0
    """The highest sequence that was dropped; before that, the one before the first event."""
    evicted: int = 0
    """The highest sequence that was dropped to make room for another job's."""
    all: list[Event] = field(default_factory=list)
    """The events of all jobs in order. Some at the beginning, and some in between, are dropped."""
    head: int = 0
    """Events at the beginning of `all` that are dropped."""
    count: int = 0
    """Events that are kept."""
    jobs: dict[JobId, JobEvents] = field(default_factory=dict)
    """Jobs of which any event is kept."""
    most: int = field(default_factory=lambda: EVENTS_MAX)
    """Events that are kept."""

    def __eq__(self, other: object) -> bool:
        """Return whether readers find the same in both."""
        if not isinstance(other, EventLog):
            return NotImplemented
        mine = (self.last, self.dropped, self.evicted, self.jobs)
        return mine == (other.last, other.dropped, other.evicted, other.jobs)

    def begin(self, epoch: int) -> None:
        """Begin with the first epoch of a coordinator that remembers nothing."""
        self.last = self.dropped = self.evicted = _first_of(epoch) - 1

    def miss(self, epoch: int) -> None:
        """Note that another coordinator was at work before this epoch: its events are unknown."""
        before = _first_of(epoch) - 1
        if before <= self.last:
            return
        self.dropped = self.evicted = before
        for of_job in self.jobs.values():
            of_job.dropped = before

    def number(self, emitted: Iterable[Emitted], at_ms: int, epoch: int) -> tuple[Event, ...]:
        """Return the events of a step with the next numbers; they are not taken yet."""
        first = max(self.last + 1, _first_of(epoch))
        return tuple(
            Event(
                sequence,
                one.job_id,
                KINDS[one.reason],
                one.reason,
                at_ms,
                epoch,
                one.run,
                one.round,
                _cut(one.facts),
            )
            for sequence, one in enumerate(emitted, first)
        )

    def take(self, events: tuple[Event, ...]) -> None:
        """Add events that follow the last one, and drop what is beyond the limits."""
        for event in events:
            of_job = self.jobs.get(event.job_id)
            if of_job is None:
                of_job = self.jobs[event.job_id] = JobEvents(dropped=self.evicted)
            of_job.events.append(event)
            self.all.append(event)
            self.count += 1
            # That of a journal with a part of the jobs is higher, and readers have come so far.
            self.last = max(self.last, event.sequence)
            if len(of_job.events) > EVENTS_PER_JOB_MAX:
                self._drop(of_job)
            elif self.count > self.most:
                self._drop_oldest()
        if self.head > max(_DROPPED_MAX, self.count):
            del self.all[: self.head]
            self.head = 0
        if len(self.all) - self.head - self.count > max(_DROPPED_MAX, self.count):
            self.all = self.kept()
            self.head = 0

    def kept(self) -> list[Event]:
        """Return the events of all jobs that are kept, in order."""
        listed = self.all[self.head :]
        if len(listed) == self.count:
            return listed
        dropped = self.last + 1
        first = {
            job_id: of_job.events[0].sequence
            for job_id, of_job in self.jobs.items()
            if of_job.events  # a snapshot names its jobs before their events
        }
        return [event for event in listed if event.sequence >= first.get(event.job_id, dropped)]

    def lost(self, job_id: JobId | None) -> int:
        """Return the highest sequence that was dropped, of a job or (None) of all."""
        if job_id is None:
            return self.dropped
        of_job = self.jobs.get(job_id)
        # Without an entry, all events that the job may have had were dropped for others.
        return self.evicted if of_job is None else of_job.dropped

    def find(self, job_id: JobId | None, after: int, most: int) -> Found:
        """Return events after a sequence.

        Args:
            job_id: the job; None: all jobs.
            after: the sequence; it need not be one of an event.
            most: how many events are looked at, at most, 1 or more.
        """
        if job_id is None:
            known, begin = self.all, self.head
        else:
            of_job = self.jobs.get(job_id)
            known, begin = ([] if of_job is None else of_job.events), 0
        begin = bisect_right(known, after, begin, key=_SEQUENCE)
        found = known[begin : begin + most]
        is_end = begin + most >= len(known)
        looked_at = max(self.last, after) if is_end else found[-1].sequence
        if job_id is None:
            found = [event for event in found if self._is_kept(event)]
        return Found(found, looked_at)

    def copy(self) -> EventLog:
        """Return a copy that later events leave as it is."""
        jobs = {job_id: of_job.copy() for job_id, of_job in self.jobs.items()}
        return replace(self, all=self.all.copy(), jobs=jobs)

    def _is_kept(self, event: Event) -> bool:
        of_job = self.jobs.get(event.job_id)
        return of_job is not None and event.sequence >= of_job.events[0].sequence

    def _drop(self, of_job: JobEvents) -> None:
        """Drop the oldest event of a job."""
        oldest = of_job.events.pop(0)
        of_job.dropped = oldest.sequence
        self.dropped = max(self.dropped, oldest.sequence)
        self.count -= 1
        if not of_job.events:
            del self.jobs[oldest.job_id]

    def _drop_oldest(self) -> None:
        """Drop the oldest event of all."""
        while not self._is_kept(self.all[self.head]):
            self.head += 1
        oldest = self.all[self.head]
        self._drop(self.jobs[oldest.job_id])
        self.evicted = oldest.sequence
        self.head += 1


def _cut(facts: Facts) -> Facts:
    """Return facts with their texts cut."""
    for _, value in facts:
        if isinstance(value, str) and len(value) > TEXT_MAX:
            return tuple(
                (name, one[:TEXT_MAX] if isinstance(one, str) else one) for name, one in facts
            )
    return facts


_SEQUENCE = attrgetter("sequence")


def _first_of(epoch: int) -> int:
    """Return the first sequence that an epoch may give."""
    return max(1, epoch * SEQUENCES_PER_EPOCH)
