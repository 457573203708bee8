"""The log of events: the latest of each job, and the latest of all.

The coordinator's state and a replay of its journal take the same events with the same code. A full
job drops its oldest event. But events of single nodes take no more than a part of its room: one
outage of a large job would drop all that tells the story of the job. One number for each job says
up to where any of its events are lost, and one number says it for all jobs.

An event that its job has dropped stays in the list of all events, until half of that list is
dropped. So taking an event costs the same however many are kept, and reading finds its place by
bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.server.core.model.ids import JobId


class EventKind(Enum):
    """Kind of an event, as readers see it.

    The value is its line, with facts of the event in braces; `why` follows where there is one.
    """

    JOB_CREATED = "an operator created the job"
    RUN_OPENED = "run {run} began"
    RUN_CLOSED = "run {run} ended: {outcome}"
    JOB_DELETED = "the job was deleted"
    JOB_UPDATED = (
        "an operator changed the job: {min_nodes} to {max_nodes} nodes, at most "
        "{max_restarts} restarts"
    )
    RESTART_REQUESTED = "an operator restarted the job"
    ROUND_SEALED = "round {round} was sealed ({began}); nodes: {nodes}, workers: {world_size}"
    ROUND_ADOPTED = "round {round} was adopted; nodes: {nodes}"
    ROUND_STARTED = "round {round} started: every node has its workers"
    ROUND_STOPPED = "round {round} is being stopped"
    ROUND_SETTLED = "round {round} ended: {consequence}; restarts so far: {restarts}"
    VERDICT_CORRECTED = "the verdict on round {round} was corrected"
    CULPRIT_AWAITED = "round {round} waits for the failure behind the first ones"
    ROUND_PROGRESSED = "round {round} took its first step {took} after it became necessary"
    HANG_SUSPECTED = "round {round} is suspected to hang"
    HANG_OVER = "round {round} is not suspected to hang any more"
    NODE_JOINED = "node {node} joined"
    NODE_DISCONNECTED = "the connection of node {node} broke"
    NODE_RESUMED = "node {node} reconnected"
    NODE_DEPARTED = "node {node} left"
    NODE_RENAMED = "node {before} is called {node} now"
    NODE_DISPLACED = "node {node} made room for a node that holds the round"
    OTHER_ARGUMENTS_FOUND = "node {node} runs the program with other arguments than {other_node}"
    DRAIN_STARTED = "node {node} drains"
    NODE_QUARANTINED = "node {node} is quarantined"
    QUARANTINE_ENDED = "the quarantine of node {node} is over"
    NODE_CORDONED = "node {node} was cordoned"
    NODE_UNCORDONED = "node {node} was uncordoned"
    NETWORK_SUSPECTED = "{breaks} of {sessions} connections broke at once: the network is suspected"


OF_NODES = frozenset(
    {
        EventKind.NODE_JOINED,
        EventKind.NODE_DISCONNECTED,
        EventKind.NODE_RESUMED,
        EventKind.NODE_DEPARTED,
        EventKind.NODE_RENAMED,
        EventKind.NODE_DISPLACED,
        EventKind.OTHER_ARGUMENTS_FOUND,
    }
)
"""Kinds of which a large job has one for every node at once."""
EVENTS = {
    **{kind.name.lower(): (kind, kind.value) for kind in EventKind},
    "job_forgotten": (EventKind.JOB_DELETED, "the job was forgotten"),
    "round_found_incomplete": (  # it is stopped at once
        EventKind.ROUND_ADOPTED,
        "round {round} was found incomplete; nodes: {nodes}",
    ),
    "hang_ended": (EventKind.HANG_OVER, EventKind.HANG_OVER.value),
    "node_left": (EventKind.NODE_DEPARTED, EventKind.NODE_DEPARTED.value),
    "node_lost": (EventKind.NODE_DEPARTED, "node {node} was lost"),
    "newcomer_displaced": (EventKind.NODE_DISPLACED, EventKind.NODE_DISPLACED.value),
}
"""The kind and the line of each event that the core emits, by its name in the log."""


EVENTS_PER_JOB_MAX = 512
"""Events of a job that are kept."""
NODE_EVENTS_PART = 2
"""Events of single nodes are at most this part of a full job's events: 256."""
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
    of_nodes: int = 0
    """How many of its events are of single nodes."""

    def copy(self) -> JobEvents:
        """Return a copy that later events leave as it is."""
        return JobEvents(self.events.copy(), self.dropped, self.of_nodes)

    def has(self, event: Event) -> bool:
        """Return whether an event of this job is kept."""
        if event.sequence > self.dropped:
            return True
        place = bisect_left(self.events, event.sequence, key=_SEQUENCE)
        return place < len(self.events) and self.events[place].sequence == event.sequence

    def choose(self) -> int:
        """Return the place of the event that a full job drops, which is never the latest."""
        if self.of_nodes <= max(1, EVENTS_PER_JOB_MAX // NODE_EVENTS_PART):
            return 0
        return next(at for at, one in enumerate(self.events) if one.kind in OF_NODES)


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
                EVENTS[one.reason][0],
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
            of_job.of_nodes += event.kind in OF_NODES
            self.all.append(event)
            self.count += 1
            # That of a journal with a part of the jobs is higher, and readers have come so far.
            self.last = max(self.last, event.sequence)
            if len(of_job.events) > EVENTS_PER_JOB_MAX:
                self._drop(of_job, of_job.choose())
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
        kept = {event.sequence for of_job in self.jobs.values() for event in of_job.events}
        return [event for event in listed if event.sequence in kept]

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
        return of_job is not None and of_job.has(event)

    def _drop(self, of_job: JobEvents, place: int) -> None:
        """Drop an event of a job."""
        gone = of_job.events.pop(place)
        of_job.of_nodes -= gone.kind in OF_NODES
        of_job.dropped = max(of_job.dropped, gone.sequence)
        self.dropped = max(self.dropped, gone.sequence)
        self.count -= 1
        if not of_job.events:
            del self.jobs[gone.job_id]

    def _drop_oldest(self) -> None:
        """Drop the oldest event of all."""
        while not self._is_kept(self.all[self.head]):
            self.head += 1
        oldest = self.all[self.head]
        self._drop(self.jobs[oldest.job_id], 0)
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
