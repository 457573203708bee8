"""The state of a coordinator that starts again, from what its journal remembers.

Nodes are known and away: each has a while to return before it counts as lost. Rounds, budgets,
pauses, drains, cordons, barriers, keys and events are as they were. What a returning agent repeats
in its Hello is known already, so it counts once: a round that runs is left alone. Every open
job is looked at in the first turn.

Journal time stands while no coordinator is there, so every wait continues where it was: the wall
clock decides nothing. No wait begins again with every start either: a node that has not returned
since an earlier start has the rest of its time, and at least the longest pause between two
attempts of its agent to connect.

A job that cannot be restored fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.base.ranges import Range
from rallypoint.server.core.barriers.ends import times_of
from rallypoint.server.core.containment import evict
from rallypoint.server.core.invariants import check_whole
from rallypoint.server.core.memory.notes import ValuesBefore, note_changes
from rallypoint.server.core.memory.replay import JournalRecord, Memory, miss_nodes
from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.core.model.barrier import Barrier, BarrierKey
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.job import FORGOTTEN_MAX, Job
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Assignment, Round
from rallypoint.server.core.model.spec import NOTHING_ASKED, JobSpec, Timing
from rallypoint.server.core.model.verdict import FailureGroup
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from rallypoint.server.core.rounds.hangs import evidence_due_ms
from rallypoint.server.core.rounds.rounds import culprit_due_ms
from rallypoint.server.core.rounds.settling import REMEMBERED_MS
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.revisions import PER_EPOCH
from rallypoint.server.core.state.state import State
from rallypoint.server.core.state.tally import Tally, tally_of
from rallypoint.server.core.verdicts.blame import describe_exit, with_older_failures
from rallypoint.server.core.verdicts.health import find_eligibility

ADOPTION_MS = 1_000
"""How long the coordinator may have taken to adopt rounds once its first window had closed."""
LOCAL_WORLD_SIZE_MAX = 4_096
"""Workers of a node, as the protocol allows. The journal comes from outside, too."""
STILL_RUNNING = describe_exit(WorkerExit(0, 0, None, None))
"""How a group describes workers that have recorded an error and run."""
_FailedRanks = tuple[Range, WorkerExit]
"""Ranks whose workers have failed alike, and how."""


class _Returns(Struct, frozen=True):
    """Until when the agents of a job may return."""

    within_ms: int
    """How long they may take, from the first start without them."""
    attempted_ms: int
    """When every agent has tried to connect since this start."""


class Restored(Struct):
    """The state, and what the coordinator appends to its journal before it shows anything."""

    state: State
    records: list[JournalRecord] = field(default_factory=list)


def is_listening(memory: Memory, last_ms: int, timing: Timing) -> bool:
    """Return whether the first window may still have been open, in which rounds are adopted.

    Args:
        memory: from the journal.
        last_ms: journal time of the latest batch.
        timing: of the coordinator.
    """
    until_ms = memory.listens_until_ms
    return 0 < until_ms and last_ms < until_ms + ADOPTION_MS and timing.window_ms > 0


def reattach_ms(timing: Timing, spec: JobSpec, sessions: int) -> int:
    """Return how long a known agent may take to return to a coordinator that starts again.

    Longer than the longest pause between its attempts, and a lease, as when the network fails. If
    it has to find the coordinator first, it has more time.

    Args:
        timing: of the coordinator.
        spec: of the agent's job.
        sessions: that are known, of all jobs.
    """
    own_ms = timing.compute_lease_ms(NOTHING_ASKED, sessions)
    job_ms = timing.compute_lease_ms(spec, max(sessions, spec.min_nodes))
    lease_ms = max(own_ms, job_ms, timing.window_ms)
    return lease_ms + timing.search_ms


def attempt_ms(timing: Timing) -> int:
    """Return the shortest time that an agent needs to return: longer than its longest pause."""
    return timing.window_ms + timing.search_ms


def restore(
    memory: Memory,
    *,
    coordinator_id: str,
    epoch: int,
    durable: bool,
    timing: Timing,
    now_ms: int,
    explain: Callable[[JobId, Exception], str],
    away_ms: int = 0,
) -> Restored:
    """Return the state of the coordinator as it starts again.

    Args:
        memory: from the journal. The state takes parts of it over.
        coordinator_id: the journal's.
        epoch: the first of this life, higher than any before.
        durable: whether the journal outlives the process.
        timing: of the coordinator.
        now_ms: journal time, later than the latest batch: what was due before has happened.
        explain: returns why a job could not be restored, for its verdict.
        away_ms: for how long no coordinator was there, by the wall clock. Known failures became
            older by as much, which decides only which of them was the first.
    """
    state = State(
        coordinator_id=coordinator_id,
        epoch=epoch,
        durable=durable,
        timing=timing,
        first_epoch=epoch,
        since_epoch=memory.since_epoch,
        # It limits only what opens within a fence of the journal's beginning.
        has_unknown_past=timing.window_ms > 0,
        events=memory.events,
        gone=memory.gone,
        clocks=memory.clocks,
        listens_until_ms=0,
    )
    if len(memory.gone) >= FORGOTTEN_MAX:  # others may have been dropped
        state.revisions.compacted = epoch * PER_EPOCH
    for job_id in memory.gone:
        state.revise(job_id)
    if is_listening(memory, now_ms - 1, timing):
        # It begins again, because its agents may be away as long again.
        state.window_until_ms = state.listens_until_ms = now_ms + timing.window_ms
        state.deadlines.set((DeadlineKind.WINDOW, ""), state.window_until_ms)
    raised = EpochRaised(epoch, resumed=True, window_until_ms=state.listens_until_ms, at_ms=now_ms)
    miss_nodes(memory, now_ms)
    restored = Restored(state, [raised])
    known = {session: node for of_job in memory.nodes.values() for session, node in of_job.items()}
    before = ValuesBefore(dict(memory.jobs), dict(known))
    barriers = _barriers_by_job(memory)
    for job_id, job in memory.jobs.items():
        nodes = memory.nodes.get(job_id, {})
        try:
            _refuse_broken(memory, job_id)
            _restore_job(state, job, nodes, now_ms, away_ms, len(known))
            _restore_shared(state, memory, job_id, barriers.get(job_id, {}))
            check_whole(state, job_id)
        except Exception as error:  # noqa: BLE001  # a bug in one job must not end the others
            text = explain(job_id, error)
            state.jobs[job_id] = job
            restored.records += evict(state, job_id, nodes, now_ms, text).records
    state.holding.jobs = len(state.jobs)
    restored.records += note_changes(before, restored.records, state)
    return restored


def _refuse_broken(memory: Memory, job_id: JobId) -> None:
    error = memory.broken.get(job_id)
    if error is not None:
        raise BrokenInvariant(job_id, "a record does not fit it") from error


def _refuse_crowds(job: Job, nodes: Mapping[SessionId, Node]) -> None:
    """Refuse a node with more workers than any can have: what counts them would not end."""
    members = () if job.round is None else job.round.members
    places = [(one.name, one.assignment) for one in members]
    places += [(one.name, one.assignment) for one in nodes.values() if one.assignment]
    for name, place in places:
        if place.local_world_size > LOCAL_WORLD_SIZE_MAX:
            raise BrokenInvariant(job.job_id, f"{name} has more workers than a node can have")


def _restore_job(
    state: State,
    job: Job,
    nodes: Mapping[SessionId, Node],
    now_ms: int,
    away_ms: int,
    sessions: int,
) -> None:
    """Add a job with its nodes and deadlines."""
    job_id, timing = job.job_id, state.timing
    returns_ms = reattach_ms(timing, job.spec, sessions)
    attempted_ms = now_ms + min(attempt_ms(timing), returns_ms)
    round = job.round
    if round is not None:
        round = with_older_failures(round, away_ms)
        sent, step = round.notices, round.durable_step
        round = replace(round, notices_sent=sent, step=step, taken_over_ms=now_ms)
    # While no coordinator was there, no node could join.
    forming_since_ms = max(job.forming_since_ms, attempted_ms - job.spec.join_timeout_ms)
    if job.phase is not Phase.FORMING:
        forming_since_ms = job.forming_since_ms
    job = replace(job, round=round, forming_since_ms=forming_since_ms, last_arrival_ms=now_ms)
    state.jobs[job_id] = job
    state.revise(job_id)
    failed = [] if round is None else _failed_ranks(round)
    _refuse_crowds(job, nodes)
    tally = Tally()
    for node in sorted(nodes.values(), key=lambda one: one.arrival):
        node = _restore_node(job, node, failed, now_ms)
        state.nodes[node.session] = node
        state.sessions.setdefault(job_id, {})[node.session] = None
        state.index[job_id, node.name] = node.session
        if node.identity.node_rank is not None:
            state.index[job_id, node.identity.node_rank] = node.session
        assert node.missed_ms is not None, node.name
        back_by_ms = max(node.missed_ms + returns_ms, attempted_ms)
        state.deadlines.set((DeadlineKind.GRACE, node.session), back_by_ms)
        tally = tally.plus(tally_of(node), 1)
    state.tallies[job_id] = tally
    returns = _Returns(returns_ms, attempted_ms)
    for kind, at_ms in _deadlines_of(job, timing, now_ms, returns).items():
        state.deadlines.set((kind, job_id), at_ms)


def _barriers_by_job(memory: Memory) -> dict[JobId, dict[BarrierKey, Barrier]]:
    found: dict[JobId, dict[BarrierKey, Barrier]] = {}
    for key, barrier in memory.barriers.items():
        found.setdefault(key.job_id, {})[key] = barrier
    return found


def _restore_shared(
    state: State, memory: Memory, job_id: JobId, barriers: dict[BarrierKey, Barrier]
) -> None:
    """Add what the workers of a job share."""
    if barriers:
        state.barriers[job_id] = barriers
        times = [time_ms for barrier in barriers.values() for time_ms in times_of(barrier)]
        state.deadlines.set((DeadlineKind.BARRIER, job_id), min(times, default=None))
    for key, barrier in barriers.items():
        arrivals = memory.arrivals.get(key, {})
        state.holding.weigh(barrier, arrivals.items(), memory.counted.get(key, {}))
        if key in memory.arrivals:
            state.arrivals[key] = memory.arrivals[key]
        if key in memory.counted:
            state.counted[key] = memory.counted[key]
    if job_id in memory.keys:
        space = state.keys[job_id] = memory.keys[job_id]
        state.holding.keys += space.weight


def _restore_node(job: Job, node: Node, failed: Sequence[_FailedRanks], now_ms: int) -> Node:
    """Return the node, away, with what is known of its workers."""
    state, exits = node.state, node.exits
    if node.member:
        assert job.round is not None and node.assignment is not None, node.name
        exits = _exits_of(node.assignment, failed)
        if state is NodeState.UNREADY:
            has_started = job.round.started_ms is not None
            state = NodeState.STARTED if has_started else NodeState.ASSIGNED
    return replace(
        node,
        attached=False,
        # Before this, its last message has arrived: when the coordinator first started without it.
        broke_ms=node.missed_ms,
        state=state,
        exits=exits,
        # As of the latest batch: the end of a quarantine right after it is still an event.
        eligibility=find_eligibility(job.health, node.name, now_ms - 1),
    )


def _failed_ranks(round: Round) -> list[_FailedRanks]:
    """Return how the workers of a round have failed, as far as it is known; the last one counts."""
    groups = ((group.ranks, _stub_of(group)) for group in round.failure_groups)
    unlisted = (round.unlisted_ranks, WorkerExit(0, 0, 1, None))
    ranges = [(span, exit) for spans, exit in (*groups, unlisted) for span in spans]
    known = [((one.rank, one.rank), one.exit.without_words()) for one in round.failures]
    return [*ranges, *known]


def _exits_of(place: Assignment, failed: Sequence[_FailedRanks]) -> tuple[WorkerExit, ...]:
    """Return how the workers of a node have failed. Only its own ranks are counted out."""
    begin, end = place.first_rank, place.first_rank + place.local_world_size
    exits: dict[int, WorkerExit] = {}
    for (first, last), exit in failed:
        exits |= dict.fromkeys(range(max(first, begin), min(last + 1, end)), exit)
    return tuple(replace(exits[rank], local_rank=rank - begin) for rank in sorted(exits))


def _stub_of(group: FailureGroup) -> WorkerExit:
    """Return the exit of one worker of a group of equal failures."""
    if group.key[0] == STILL_RUNNING:
        return WorkerExit(0, 0, None, None, error=ErrorRecord(""))
    is_mixed = group.exit_code is None and group.signal is None
    exit_code = 1 if is_mixed else group.exit_code
    return WorkerExit(0, 0, exit_code, group.signal)


def _deadlines_of(
    job: Job, timing: Timing, now_ms: int, returns: _Returns
) -> dict[DeadlineKind, int]:
    """Return what the job waits for.

    A member that was not told to start or to stop learns it when it returns, so it has once as much
    more time as agents may take for that; further starts add none.
    """
    due: dict[DeadlineKind, int] = {}
    ends = [known.quarantined_until_ms for known in job.health]
    pending = [end_ms for end_ms in ends if end_ms >= now_ms]
    if pending:
        due[DeadlineKind.QUARANTINE_END] = min(pending)
    round, spec = job.round, job.spec
    match job.phase:
        case Phase.FORMING:
            due[DeadlineKind.FORMING] = now_ms
            if job.empty_since_ms is not None:
                abandoned_ms = job.empty_since_ms + spec.join_timeout_ms
                due[DeadlineKind.ABANDON] = max(abandoned_ms, returns.attempted_ms)
        case Phase.RUNNING:
            assert round is not None
            due[DeadlineKind.DRAIN] = now_ms  # the job is looked at
            if round.started_ms is None:
                started_ms = round.sealed_ms + returns.within_ms + timing.start_due_ms
                due[DeadlineKind.START] = max(started_ms, returns.attempted_ms)
            culprit_ms = culprit_due_ms(round) if round.failures else None
            if culprit_ms is not None:
                due[DeadlineKind.CULPRIT] = culprit_ms
            evidence_ms = evidence_due_ms(round)
            if evidence_ms is not None:
                due[DeadlineKind.HANG] = evidence_ms
        case Phase.STOPPING:
            assert round is not None and round.stop_ms is not None
            stop_ms = spec.shutdown_timeout_ms + timing.stop_slack_ms
            stopped_ms = round.stop_ms + returns.within_ms + stop_ms
            due[DeadlineKind.STOP] = max(stopped_ms, returns.attempted_ms)
        case Phase.CLOSED:
            due[DeadlineKind.FORGET] = (job.closed_ms or 0) + REMEMBERED_MS
    return due
