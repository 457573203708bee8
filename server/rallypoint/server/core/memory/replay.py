"""A coordinator's memory: the result of the journal's records, applied in order.

Of jobs and nodes it has what is not volatile. A coordinator that starts again gets its state
from it; see `restore`. `snapshot` keeps the journal small.

A record that does not fit its job is a bug of ours. The job is noted as broken, and only this job
is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.server.core.memory.changes import (
    begins_round,
    in_round,
    places_of,
    with_arrival,
    with_job_changes,
    with_node_changes,
)
from rallypoint.server.core.memory.durable import durable_job, durable_node
from rallypoint.server.core.memory.parts import EVENTS_PER_PART, cut
from rallypoint.server.core.messages.records import (
    BarrierArrived,
    BarrierDropped,
    BarrierEnded,
    ClockMeasured,
    EpochRaised,
    EventsLogged,
    JobForgotten,
    JobNoted,
    KeysDropped,
    KeysWritten,
    NodeJoined,
    NodeNoted,
    NodeRemoved,
    Record,
)
from rallypoint.server.core.model.barrier import (
    Arrival,
    Barrier,
    BarrierKey,
    Ended,
    Participant,
    count_arrivals,
)
from rallypoint.server.core.model.events import EVENTS_MAX, EventLog, JobEvents
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.job import Gone, Job
from rallypoint.server.core.model.keyspace import (
    Answer,
    Change,
    Entry,
    Keyspace,
    Place,
    size_of,
    size_of_answer,
)
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.state.clocks import Clocks
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
    """A record that replaces all earlier ones of a job's keys; KeysRestored follow it."""

    job_id: JobId
    run: int
    revision: int
    """As in `Keyspace`, like the fields that follow."""
    compacted: int
    round: int
    forgotten: int


class KeysRestored(Struct, frozen=True):
    """A part of a job's keys, all in order; it follows the KeysSnapshot."""

    job_id: JobId
    entries: tuple[tuple[Place, Entry], ...] = ()
    changes: tuple[Change, ...] = ()
    requests: tuple[tuple[str, Answer], ...] = ()


class EventsSnapshot(Struct, frozen=True):
    """A record that replaces all earlier ones of events; EventsLogged follow with those kept."""

    last: int
    """As in `EventLog`, like the fields that follow."""
    dropped: int
    evicted: int
    jobs: tuple[tuple[JobId, int], ...]
    """Jobs of which any event is kept, with `JobEvents.dropped` of each."""


JournalRecord = (
    Record | JobSnapshot | BarrierSnapshot | KeysSnapshot | KeysRestored | EventsSnapshot
)


class Memory(Struct):
    """The durable facts of a coordinator."""

    epoch: int = 0
    since_epoch: int = 0
    """As in `State.since_epoch`."""
    jobs: dict[JobId, Job] = field(default_factory=dict)
    nodes: dict[JobId, dict[SessionId, Node]] = field(default_factory=dict)
    """Of each job that has any."""
    barriers: dict[BarrierKey, Barrier] = field(default_factory=dict)
    arrivals: dict[BarrierKey, dict[Participant, Arrival]] = field(default_factory=dict)
    """Of the open generations."""
    counted: dict[BarrierKey, dict[Participant, tuple[str, int]]] = field(default_factory=dict)
    """As in `State.counted`."""
    keys: dict[JobId, Keyspace] = field(default_factory=dict)
    events: EventLog = field(default_factory=EventLog)
    gone: dict[JobId, Gone] = field(default_factory=dict)
    """As in `State.gone`."""
    clocks: Clocks = field(default_factory=Clocks)
    listens_until_ms: int = 0
    """As in `State`."""
    broken: dict[JobId, Exception] = field(default_factory=dict)
    """Jobs to which a record could not be applied, and why not."""


def replay(records: Iterable[JournalRecord], *, events_max: int = EVENTS_MAX) -> Memory:
    """Apply `records`, oldest first, to an empty memory that keeps so many events."""
    memory = Memory(events=EventLog(most=events_max))
    for record in records:
        try:
            _apply_record(memory, record)
        except Exception as error:  # a bug in one job must not stop the others
            job_id = _job_of(record)
            if job_id is None:
                raise
            memory.broken.setdefault(job_id, error)
    return memory


def _job_of(record: JournalRecord) -> JobId | None:
    """Return the job that a record is about; None: it is about all."""
    match record:
        case BarrierArrived() | BarrierEnded() | BarrierDropped():
            return record.key.job_id
        case BarrierSnapshot(barrier=barrier):
            return barrier.key.job_id
        case NodeJoined(node=node):
            return node.job_id
        case JobSnapshot(job=job):
            return job.job_id
        case EpochRaised() | ClockMeasured() | EventsLogged() | EventsSnapshot():
            return None
        case _:
            return record.job_id


def snapshot(memory: Memory) -> tuple[JournalRecord, ...]:
    """Return the fewest records whose replay is `memory`."""
    window_ms = memory.listens_until_ms
    epochs = [EpochRaised(memory.since_epoch, window_until_ms=window_ms)]
    if memory.epoch != memory.since_epoch:
        epochs.append(EpochRaised(memory.epoch, resumed=True))
    jobs = (JobSnapshot(job) for job in memory.jobs.values())
    nodes = (NodeJoined(node) for of_job in memory.nodes.values() for node in of_job.values())
    barriers = (
        BarrierSnapshot(
            barrier,
            tuple(memory.arrivals.get(key, {}).items()),
            tuple(memory.counted.get(key, {}).items()),
        )
        for key, barrier in memory.barriers.items()
    )
    keys = (one for job_id, space in memory.keys.items() for one in _keys_records(job_id, space))
    gone = (JobForgotten(job_id, left) for job_id, left in memory.gone.items())
    events = _events_records(memory.events)
    clocks = memory.clocks.records()
    return (*epochs, *clocks, *gone, *jobs, *nodes, *barriers, *keys, *events)


def _keys_records(job_id: JobId, space: Keyspace) -> Iterator[KeysSnapshot | KeysRestored]:
    """Yield the records of a job's keys, each of a bounded size."""
    yield KeysSnapshot(
        job_id, space.run, space.revision, space.compacted, space.round, space.forgotten
    )
    for places in cut(space.places, lambda place: size_of(place, space.entries[place])):
        yield KeysRestored(job_id, tuple((place, space.entries[place]) for place in places))
    for changes in cut(space.changes, lambda change: size_of(change.place, change.entry)):
        yield KeysRestored(job_id, changes=changes)
    for requests in cut(space.requests.items(), lambda one: size_of_answer(one[1])):
        yield KeysRestored(job_id, requests=requests)


def _events_records(log: EventLog) -> Iterator[EventsSnapshot | EventsLogged]:
    """Yield the records of all events, each of a bounded size."""
    jobs = tuple((job_id, of_job.dropped) for job_id, of_job in log.jobs.items())
    yield EventsSnapshot(log.last, log.dropped, log.evicted, jobs)
    kept = log.kept()
    for begin in range(0, len(kept), EVENTS_PER_PART):
        yield EventsLogged(tuple(kept[begin : begin + EVENTS_PER_PART]))


def _apply_record(memory: Memory, record: JournalRecord) -> None:
    if isinstance(record, EpochRaised):
        _raise_epoch(memory, record)
    elif isinstance(record, ClockMeasured):
        memory.clocks.take(record)
    elif isinstance(record, BarrierArrived | BarrierEnded | BarrierDropped | BarrierSnapshot):
        _apply_barrier_record(memory, record)
    elif isinstance(record, KeysWritten | KeysDropped | KeysSnapshot | KeysRestored):
        _apply_keys_record(memory, record)
    elif isinstance(record, EventsLogged | EventsSnapshot):
        _apply_events(memory, record)
    elif isinstance(record, NodeJoined | NodeRemoved | NodeNoted):
        _apply_node(memory, record)
    elif isinstance(record, JobForgotten):
        _forget_job(memory, record)
    elif isinstance(record, JobSnapshot):
        memory.jobs[record.job.job_id] = record.job
    else:
        _change_job(memory, record)


def _raise_epoch(memory: Memory, record: EpochRaised) -> None:
    memory.epoch = max(memory.epoch, record.epoch)
    if record.window_until_ms is not None:
        memory.listens_until_ms = record.window_until_ms
    if not memory.events.last:
        memory.events.begin(record.epoch)
    elif not record.resumed:
        memory.events.miss(record.epoch)
    if not record.resumed or not memory.since_epoch:
        memory.since_epoch = record.epoch
    if record.at_ms is not None:
        miss_nodes(memory, record.at_ms)


def miss_nodes(memory: Memory, at_ms: int) -> None:
    """Note that the coordinator has started again: every node that is known has to return."""
    for of_job in memory.nodes.values():
        for session, node in of_job.items():
            if node.missed_ms is None:
                of_job[session] = replace(node, missed_ms=at_ms)


def _change_job(memory: Memory, record: JobNoted) -> None:
    was = memory.jobs[record.job_id]
    job = memory.jobs[record.job_id] = with_job_changes(was, record.changes)
    if not begins_round(was, job):
        return
    number, places = 0 if job.round is None else job.round.header.number, places_of(job)
    nodes = memory.nodes.get(record.job_id, {})
    for session, node in nodes.items():
        nodes[session] = in_round(node, number, places)


def _apply_node(memory: Memory, record: NodeJoined | NodeRemoved | NodeNoted) -> None:
    match record:
        case NodeJoined(node=node):
            memory.nodes.setdefault(node.job_id, {})[node.session] = node
            memory.jobs[node.job_id] = with_arrival(memory.jobs[node.job_id], node.arrival)
        case NodeRemoved(job_id=job_id, session=session):
            of_job = memory.nodes.get(job_id, {})
            of_job.pop(session, None)
            if not of_job:
                memory.nodes.pop(job_id, None)
        case NodeNoted(job_id=job_id, session=session):
            nodes = memory.nodes[job_id]
            nodes[session] = with_node_changes(nodes[session], record)


def _forget_job(memory: Memory, record: JobForgotten) -> None:
    memory.jobs.pop(record.job_id, None)
    if record.left is not None:
        remember_gone(memory.gone, record.job_id, record.left)
    memory.keys.pop(record.job_id, None)
    memory.nodes.pop(record.job_id, None)
    memory.broken.pop(record.job_id, None)
    for key in [key for key in memory.barriers if key.job_id == record.job_id]:
        _forget_barrier(memory, key)


def _apply_keys_record(
    memory: Memory, record: KeysWritten | KeysDropped | KeysSnapshot | KeysRestored
) -> None:
    if isinstance(record, KeysSnapshot):
        memory.keys[record.job_id] = Keyspace(
            record.run, record.revision, record.compacted, record.round, record.forgotten
        )
    elif isinstance(record, KeysRestored):
        memory.keys[record.job_id].restore(record.entries, record.changes, record.requests)
    else:
        apply_keys(memory.keys, record)


def _apply_events(memory: Memory, record: EventsLogged | EventsSnapshot) -> None:
    if isinstance(record, EventsSnapshot):
        jobs = {job_id: JobEvents(dropped=dropped) for job_id, dropped in record.jobs}
        most = memory.events.most
        memory.events = EventLog(record.last, record.dropped, record.evicted, jobs=jobs, most=most)
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
            before = memory.counted.get(key, {})
            memory.counted[key] = count_arrivals(before, generation, arrivals)
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
        state.since_epoch,
        {job_id: durable_job(job) for job_id, job in state.jobs.items()},
        {
            job_id: {session: durable_node(state.nodes[session]) for session in sessions}
            for job_id, sessions in state.sessions.items()
            if sessions
        },
        {key: barrier for of_job in state.barriers.values() for key, barrier in of_job.items()},
        {key: dict(arrivals) for key, arrivals in state.arrivals.items()},
        {key: dict(counted) for key, counted in state.counted.items()},
        {job_id: space.copy() for job_id, space in state.keys.items()},
        state.events.copy(),
        dict(state.gone),
        state.clocks.copy(),
        state.listens_until_ms,
    )
