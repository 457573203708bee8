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

from rallypoint.server.core.control.requests import with_operation
from rallypoint.server.core.events.log import EventLog
from rallypoint.server.core.keyspace.keyspace import Keyspace
from rallypoint.server.core.messages.records import (
    BarrierArrived,
    BarrierDropped,
    BarrierEnded,
    DrainRequested,
    DrainRequestEnded,
    EpochRaised,
    EventsLogged,
    JobForgotten,
    JobUpdated,
    KeysDropped,
    KeysWritten,
    NodeHealthChanged,
    NodeSucceeded,
    OperationDone,
    PauseEnded,
    Record,
    RoundSealed,
    RoundSettled,
    RoundStopped,
    RunClosed,
    RunOpened,
)
from rallypoint.server.core.model.barrier import (
    Arrival,
    Barrier,
    BarrierKey,
    Ended,
    Participant,
)
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import Counts, DrainRequest, Gone, Job, NodeHealth
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import Member, RoundHeader, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Verdict
from rallypoint.server.core.rounds.drains import with_request, without_request
from rallypoint.server.core.rounds.ranks import slots_of
from rallypoint.server.core.state.state import State, apply_keys, remember_gone
from rallypoint.server.core.verdicts.health import with_health


class JobMemory(Struct, frozen=True):
    """The durable facts of one job's latest run."""

    run: int
    since_epoch: int
    spec: JobSpec
    launch_id: str
    phase: Phase = Phase.FORMING
    round_number: int = 0
    header: RoundHeader | None = None
    """Header of the round that runs or is being stopped."""
    members: tuple[Member, ...] = ()
    slots: tuple[NodeName, ...] = ()
    stop_reason: RoundReason | None = None
    succeeded: frozenset[NodeName] = frozenset()
    next_reason: RoundReason = RoundReason.FIRST
    counts: Counts = Counts()
    drain_requests: tuple[DrainRequest, ...] = ()
    backoff_until_ms: int = 0
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    health: tuple[NodeHealth, ...] = ()
    updated: frozenset[str] = frozenset()
    spec_revision: int = 0
    operations: tuple[str, ...] = ()


class JobSnapshot(Struct, frozen=True):
    """A record that replaces all earlier ones of its job."""

    job_id: JobId
    memory: JobMemory


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
    jobs: dict[JobId, JobMemory] = field(default_factory=dict)
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
    jobs = (JobSnapshot(job_id, job) for job_id, job in memory.jobs.items())
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
        memory.epoch = max(memory.epoch, record.epoch)
        if memory.events.last:
            memory.events.miss(record.epoch)
        else:
            memory.events.begin(record.epoch)
    elif isinstance(record, JobForgotten):
        memory.jobs.pop(record.job_id, None)
        remember_gone(memory.gone, record.job_id, record.left)
        memory.keys.pop(record.job_id, None)
        for key in [key for key in memory.barriers if key.job_id == record.job_id]:
            _forget_barrier(memory, key)
    elif isinstance(record, JobSnapshot):
        memory.jobs[record.job_id] = record.memory
    elif isinstance(record, BarrierArrived | BarrierEnded | BarrierDropped | BarrierSnapshot):
        _apply_barrier_record(memory, record)
    elif isinstance(record, KeysWritten | KeysDropped | KeysSnapshot):
        _apply_keys_record(memory, record)
    elif isinstance(record, EventsLogged | EventsSnapshot):
        _apply_events(memory, record)
    elif isinstance(record, RunOpened):
        known = memory.jobs.get(record.job_id)
        memory.gone.pop(record.job_id, None)
        memory.jobs[record.job_id] = JobMemory(
            run=record.run,
            since_epoch=record.since_epoch,
            spec=record.spec,
            launch_id=record.launch_id,
            round_number=record.round_number,
            counts=record.counts,
            drain_requests=record.drain_requests,
            health=() if known is None else known.health,
            updated=record.updated,
            spec_revision=record.spec_revision,
            operations=record.operations,
        )
    else:
        memory.jobs[record.job_id] = _apply_job_record(memory.jobs[record.job_id], record)


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


def _apply_job_record(
    job: JobMemory,
    record: RoundSealed
    | RoundStopped
    | NodeSucceeded
    | DrainRequested
    | DrainRequestEnded
    | RoundSettled
    | NodeHealthChanged
    | RunClosed
    | JobUpdated
    | OperationDone
    | PauseEnded,
) -> JobMemory:
    match record:
        case RoundSealed(header=header, members=members):
            return replace(
                job,
                phase=Phase.RUNNING,
                round_number=header.number,
                header=header,
                members=members,
                slots=slots_of(members, header.group_world_size),
                stop_reason=None,
                succeeded=frozenset(),
            )
        case RoundStopped(reason=reason):
            return replace(job, phase=Phase.STOPPING, stop_reason=reason)
        case NodeSucceeded(name=name):
            return replace(job, succeeded=job.succeeded | {name})
        case DrainRequested(request=request):
            return replace(job, drain_requests=with_request(job.drain_requests, request))
        case DrainRequestEnded(name=name):
            return replace(job, drain_requests=without_request(job.drain_requests, name))
        case RoundSettled():
            return replace(
                job,
                phase=Phase.FORMING,
                header=None,
                members=(),
                stop_reason=None,
                succeeded=frozenset(),
                next_reason=record.reason,
                counts=record.counts,
                backoff_until_ms=record.backoff_until_ms,
            )
        case NodeHealthChanged(health=health):
            return replace(job, health=with_health(job.health, health))
        case JobUpdated() | OperationDone() | PauseEnded():
            return _apply_operation(job, record)
        case RunClosed(outcome=outcome, verdict=verdict):
            return replace(
                job,
                phase=Phase.CLOSED,
                header=None,
                members=(),
                stop_reason=None,
                succeeded=frozenset(),
                outcome=outcome,
                verdict=verdict,
            )


def _apply_operation(job: JobMemory, record: JobUpdated | OperationDone | PauseEnded) -> JobMemory:
    match record:
        case JobUpdated(spec=spec, fields=fields, revision=revision):
            return replace(job, spec=spec, updated=fields, spec_revision=revision)
        case PauseEnded(at_ms=at_ms):
            return replace(job, backoff_until_ms=at_ms)
        case OperationDone(request=request):
            return replace(job, operations=with_operation(job.operations, request))


def memory_of(state: State) -> Memory:
    """Return the durable facts of `state`, which a replay of its journal must reproduce."""
    return Memory(
        state.epoch,
        {job_id: _memory_of_job(state, job) for job_id, job in state.jobs.items()},
        {key: barrier for of_job in state.barriers.values() for key, barrier in of_job.items()},
        {key: dict(arrivals) for key, arrivals in state.arrivals.items()},
        {key: dict(counted) for key, counted in state.counted.items()},
        {job_id: space.copy() for job_id, space in state.keys.items()},
        state.events.copy(),
        dict(state.gone),
    )


def _memory_of_job(state: State, job: Job) -> JobMemory:
    round = job.round
    alive = frozenset(
        node.name
        for node in (state.nodes[session] for session in state.sessions.get(job.job_id, ()))
        if node.member and node.state is NodeState.SUCCEEDED
    )
    return JobMemory(
        run=job.run,
        since_epoch=job.since_epoch,
        spec=job.spec,
        launch_id=job.launch_id,
        phase=job.phase,
        round_number=job.round_number,
        header=round.header if round else None,
        members=round.members if round else (),
        slots=job.slots,
        stop_reason=round.stop_reason if round else None,
        succeeded=alive | frozenset(round.succeeded_gone if round else ()),
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
