"""A coordinator's memory: the result of the journal's records, applied in order.

Nodes are not part of it: their agents send Hello again.

Today no coordinator loads a journal: the only store lives in memory. Tests and the simulation check
after every step that a replay of the records gives the state, so a durable store can build on it.
In production `snapshot` keeps the store small.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.server.core.events.log import EventLog
from rallypoint.server.core.keyspace.keyspace import Keyspace
from rallypoint.server.core.messages.records import (
    BarrierArrived,
    BarrierDropped,
    BarrierEnded,
    EpochRaised,
    EventsLogged,
    JobForgotten,
    JobNoted,
    KeysDropped,
    KeysWritten,
    NodeJoined,
    NodeNoted,
    NodeRemoved,
    NodeSucceeded,
    Record,
    RunOpened,
)
from rallypoint.server.core.model.barrier import (
    Arrival,
    Barrier,
    BarrierKey,
    Ended,
    Participant,
)
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Gone, Job
from rallypoint.server.core.model.round import Round
from rallypoint.server.core.reads.job_records import apply_job_record, open_from
from rallypoint.server.core.state.state import State, apply_keys, remember_gone


class JobSnapshot(Struct, frozen=True):
    """A record that replaces all earlier ones of its job."""

    job: Job
    """Its durable facts."""


class BarrierSnapshot(Struct, frozen=True):
    """A record that replaces all earlier ones of its barrier."""

    barrier: Barrier
    arrivals: tuple[tuple[Participant, Arrival], ...]
    """Of the open generation."""
    counted: tuple[tuple[Participant, tuple[str, int]], ...]
    """As in `State.counted`."""


class KeysSnapshot(Struct, frozen=True):
    """A record that replaces all earlier ones of a job's keys."""

    job_id: JobId
    space: Keyspace
    """A copy, which is not changed."""


class EventsSnapshot(Struct, frozen=True):
    """A record that replaces all earlier ones of events."""

    log: EventLog
    """A copy, which is not changed."""


JournalRecord = Record | JobSnapshot | BarrierSnapshot | KeysSnapshot | EventsSnapshot


class Memory(Struct):
    """The durable facts of a coordinator."""

    epoch: int = 0
    jobs: dict[JobId, Job] = field(default_factory=dict)
    barriers: dict[BarrierKey, Barrier] = field(default_factory=dict)
    arrivals: dict[BarrierKey, dict[Participant, Arrival]] = field(default_factory=dict)
    """Of the open generations."""
    counted: dict[BarrierKey, dict[Participant, tuple[str, int]]] = field(default_factory=dict)
    """As in `State.counted`."""
    keys: dict[JobId, Keyspace] = field(default_factory=dict)
    events: EventLog = field(default_factory=EventLog)
    gone: dict[JobId, Gone] = field(default_factory=dict)
    """As in `State.gone`."""


def replay(records: Iterable[JournalRecord]) -> Memory:
    """Apply `records`, oldest first, to an empty memory."""
    memory = Memory()
    for record in records:
        _apply_record(memory, record)
    return memory


def snapshot(memory: Memory) -> tuple[JournalRecord, ...]:
    """Return the fewest records whose replay is `memory`."""
    jobs = (JobSnapshot(job) for job in memory.jobs.values())
    barriers = (
        BarrierSnapshot(
            barrier,
            tuple(memory.arrivals.get(key, {}).items()),
            tuple(memory.counted.get(key, {}).items()),
        )
        for key, barrier in memory.barriers.items()
    )
    keys = (KeysSnapshot(job_id, space) for job_id, space in memory.keys.items())
    gone = (JobForgotten(job_id, left) for job_id, left in memory.gone.items())
    events = EventsSnapshot(memory.events)
    return (EpochRaised(memory.epoch), *jobs, *barriers, *keys, *gone, events)


def _apply_record(memory: Memory, record: JournalRecord) -> None:
    if isinstance(record, EpochRaised):
        _raise_epoch(memory, record)
    elif isinstance(record, BarrierArrived | BarrierEnded | BarrierDropped | BarrierSnapshot):
        _apply_barrier_record(memory, record)
    elif isinstance(record, KeysWritten | KeysDropped | KeysSnapshot):
        _apply_keys_record(memory, record)
    elif isinstance(record, EventsLogged | EventsSnapshot):
        _apply_events(memory, record)
    elif isinstance(record, NodeJoined | NodeRemoved | NodeNoted | NodeSucceeded | JobNoted):
        pass  # not part of the memory yet
    elif isinstance(record, JobForgotten):
        _forget_job(memory, record)
    elif isinstance(record, JobSnapshot):
        memory.jobs[record.job.job_id] = record.job
    elif isinstance(record, RunOpened):
        memory.gone.pop(record.job_id, None)
        opened = open_from(memory.jobs.get(record.job_id), record)
        memory.jobs[record.job_id] = _recorded_facts(opened)
    else:
        job = apply_job_record(memory.jobs[record.job_id], record)
        memory.jobs[record.job_id] = _recorded_facts(job)


def _raise_epoch(memory: Memory, record: EpochRaised) -> None:
    memory.epoch = max(memory.epoch, record.epoch)
    if not memory.events.last:
        memory.events.begin(record.epoch)
    elif not record.resumed:
        memory.events.miss(record.epoch)


def _forget_job(memory: Memory, record: JobForgotten) -> None:
    memory.jobs.pop(record.job_id, None)
    remember_gone(memory.gone, record.job_id, record.left)
    memory.keys.pop(record.job_id, None)
    for key in [key for key in memory.barriers if key.job_id == record.job_id]:
        _forget_barrier(memory, key)


def _apply_keys_record(memory: Memory, record: KeysWritten | KeysDropped | KeysSnapshot) -> None:
    if isinstance(record, KeysSnapshot):
        memory.keys[record.job_id] = record.space.copy()
    else:
        apply_keys(memory.keys, record)


def _apply_events(memory: Memory, record: EventsLogged | EventsSnapshot) -> None:
    if isinstance(record, EventsSnapshot):
        memory.events = record.log.copy()
    else:
        memory.events.take(record.events)


def _apply_barrier_record(
    memory: Memory, record: BarrierArrived | BarrierEnded | BarrierDropped | BarrierSnapshot
) -> None:
    match record:
        case BarrierSnapshot(barrier=barrier, arrivals=arrivals, counted=counted):
            memory.barriers[barrier.key] = barrier
            if barrier.is_open:
                memory.arrivals[barrier.key] = dict(arrivals)
            if counted:
                memory.counted[barrier.key] = dict(counted)
        case BarrierDropped(key=key, only_ends=True):
            barrier = memory.barriers[key] = replace(memory.barriers[key], ends=())
            if not barrier.is_open:
                memory.counted.pop(key, None)
        case BarrierDropped(key=key):
            _forget_barrier(memory, key)
        case BarrierEnded(key=key, generation=generation):
            arrivals = tuple(sorted(memory.arrivals.pop(key, {}).items()))
            ended = Ended(generation, record.at_ms, arrivals, record.broken)
            memory.barriers[key] = memory.barriers[key].closed(ended)
            counted_now = {who: (one.request_id, generation) for who, one in arrivals}
            memory.counted.setdefault(key, {}).update(counted_now)
        case BarrierArrived(key=key, arrival=arrival):
            known = memory.barriers.get(key) or Barrier(key, 0)
            opened_ms = arrival.at_ms if known.opened_ms is None else known.opened_ms
            is_news = record.participant not in memory.arrivals.get(key, {})
            memory.barriers[key] = replace(
                known,
                generation=record.generation,
                expected=known.expected if record.expected is None else record.expected,
                opened_ms=opened_ms,
                deadline_ms=record.deadline_ms,
                arrived=known.arrived + is_news,
                round=arrival.round,
                payload_bytes=known.payload_bytes + len(arrival.payload) * is_news,
            )
            memory.arrivals.setdefault(key, {})[record.participant] = arrival


def _forget_barrier(memory: Memory, key: BarrierKey) -> None:
    memory.barriers.pop(key, None)
    memory.arrivals.pop(key, None)
    memory.counted.pop(key, None)


def memory_of(state: State) -> Memory:
    """Return the durable facts of `state`, which a replay of its journal must reproduce."""
    return Memory(
        state.epoch,
        {job_id: _recorded_facts(job) for job_id, job in state.jobs.items()},
        {key: barrier for of_job in state.barriers.values() for key, barrier in of_job.items()},
        {key: dict(arrivals) for key, arrivals in state.arrivals.items()},
        {key: dict(counted) for key, counted in state.counted.items()},
        {job_id: space.copy() for job_id, space in state.keys.items()},
        state.events.copy(),
        dict(state.gone),
    )


def _recorded_facts(job: Job) -> Job:
    """Return the job with the facts that records say, and no others."""
    round = job.round
    return Job(
        job.job_id,
        job.run,
        job.spec,
        0,
        since_epoch=job.since_epoch,
        launch_id=job.launch_id,
        phase=job.phase,
        round_number=job.round_number,
        round=None
        if round is None
        else Round(round.header, round.members, 0, None, stop_reason=round.stop_reason),
        slots=job.slots,
        next_reason=job.next_reason,
        counts=job.counts,
        drain_requests=job.drain_requests,
        backoff_until_ms=job.backoff_until_ms,
        outcome=job.outcome,
        verdict=job.verdict if job.outcome is not None else None,
        health=job.health,
        updated=job.updated,
        spec_revision=job.spec_revision,
        operations=job.operations,
    )
