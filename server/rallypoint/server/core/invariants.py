"""Conditions that hold after every step. A broken invariant is a bug of ours and ends its job.

`check_touched` looks at what a step changed and costs no more than that; `check_job` looks at a
whole job and is for rounds that were just sealed or stopped, for loads, and for simulation.
"""

from __future__ import annotations

from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.model.barrier import BarrierKey
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.keyspace import BYTES_MAX, KEYS_MAX
from rallypoint.server.core.model.node import Eligibility, Node, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.rounds.claims import is_round_over
from rallypoint.server.core.rounds.hangs import evidence_due_ms
from rallypoint.server.core.rounds.ranks import is_gapless
from rallypoint.server.core.rounds.timelines import find_disorder
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import Delta, State
from rallypoint.server.core.state.tally import Tally, tally_of
from rallypoint.server.core.verdicts.health import find_health


def _require(holds: bool, job_id: JobId, text: str) -> None:
    if not holds:
        raise BrokenInvariant(job_id, text)


def check_touched(state: State, delta: Delta) -> None:
    """Check the entries that `delta` changed, after it was applied.

    Raises:
        BrokenInvariant: for the first job that has one.
    """
    for session in delta.nodes:
        node = state.nodes.get(session)
        if node is not None:
            _check_node(state.jobs[node.job_id], node)
    for key in delta.barriers:
        _check_barrier(state, key)
    for change in delta.keys:
        _check_keys(state, change.job_id)
    for job_id in delta.jobs:
        job = state.jobs.get(job_id)
        if job is not None:
            _check_counts(job, state.tally(job_id))


def check_job(state: State, job_id: JobId) -> None:
    """Check everything about one job.

    Raises:
        BrokenInvariant: if anything does not hold.
    """
    job = state.jobs[job_id]
    nodes = list(state.nodes_of(job_id))
    tally = Tally()
    for node in nodes:
        _require(node.job_id == job_id, job_id, f"{node.name} is listed in another job")
        _require(
            state.index.get((job_id, node.name)) == node.session,
            job_id,
            f"the name {node.name} does not lead to its node",
        )
        _check_node(job, node)
        _check_eligibility(state, job, node)
        tally = tally.plus(tally_of(node), 1)
    _require(tally == state.tally(job_id), job_id, "the tally is off")
    _check_hang(state, job)
    _check_counts(job, tally)
    _check_ranks(job, nodes)


def check_whole(state: State, job_id: JobId) -> None:
    """Check everything about one job, and what its workers share.

    Raises:
        BrokenInvariant: if anything does not hold.
    """
    check_job(state, job_id)
    for key in state.barriers.get(job_id, ()):
        _check_barrier(state, key)
    _check_keys(state, job_id)


def _check_node(job: Job, node: Node) -> None:
    problem = _problem_of(job, node)
    if problem is not None:
        raise BrokenInvariant(job.job_id, f"{node.name} {problem}")


def _problem_of(job: Job, node: Node) -> str | None:
    """Return the invariant that a node breaks, in words, or None."""
    if node.member != (node.assignment is not None):
        return "is half a member"
    if node.member and (job.round is None or job.round.header.number != node.last_round):
        return "is a member and does not hold the round"
    if node.state is NodeState.READY and node.port <= 0:
        return "is ready without a port"
    if node.state in _RUNS_A_ROUND and node.last_round <= 0:
        return "runs no round"
    return None


_RUNS_A_ROUND = (NodeState.ASSIGNED, NodeState.STARTED, NodeState.SUCCEEDED)


def _check_eligibility(state: State, job: Job, node: Node) -> None:
    """Check that a node is kept out exactly when its health requires it, never without end."""
    job_id, health = job.job_id, find_health(job.health, node.name)
    is_cordoned = node.eligibility is Eligibility.CORDONED
    _require(health.cordoned == is_cordoned, job_id, f"{node.name} and its cordon disagree")
    if node.eligibility is Eligibility.QUARANTINED:
        ends_ms = state.deadlines.get((DeadlineKind.QUARANTINE_END, job_id))
        is_watched = ends_ms is not None and ends_ms <= health.quarantined_until_ms
        _require(is_watched, job_id, f"nothing ends the quarantine of {node.name}")


_OF_HANGS = (RoundReason.HUNG, RoundReason.WORKER_FAILED)
"""Why a round that hangs is stopped; workers fail when a collective times out."""


def _check_hang(state: State, job: Job) -> None:
    """Check that a suspicion is about the round that runs, and ends its wait."""
    job_id, round = job.job_id, job.round
    if round is None or round.hang is None:
        return
    is_its = job.phase is Phase.RUNNING or round.stop_reason in _OF_HANGS
    _require(is_its, job_id, "a round that was stopped for something else hangs")
    _require(
        round.hang.since_ms <= round.hang.suspected_ms,
        job_id,
        "a hang is suspected before its last progress",
    )
    evidence_ms = evidence_due_ms(round)
    if evidence_ms is not None and not round.failures:  # these stop the round anyway
        due_ms = state.deadlines.get((DeadlineKind.HANG, job_id))
        _require(due_ms is not None, job_id, "nothing ends the wait for evidence of a hang")


def _check_barrier(state: State, key: BarrierKey) -> None:
    """Check that an open barrier waits for someone, and that everyone there is expected."""
    barrier = state.barriers.get(key.job_id, {}).get(key)
    arrivals = state.arrivals.get(key, {})
    if barrier is None or not barrier.is_open:
        _require(not arrivals, key.job_id, f"barrier {key.name} has arrivals and is not open")
        return
    count = barrier.expected.count
    _require(0 < len(arrivals) < count, key.job_id, f"barrier {key.name} waits for no one")
    _require(len(arrivals) == barrier.arrived, key.job_id, f"the count of {key.name} is off")
    due_ms = state.deadlines.get((DeadlineKind.BARRIER, key.job_id))
    is_due = due_ms is not None and due_ms <= barrier.deadline_ms
    _require(is_due, key.job_id, f"nothing ends the wait at barrier {key.name}")


def _check_keys(state: State, job_id: JobId) -> None:
    """Check that a keyspace belongs to what runs, and is within its bounds."""
    space, job = state.keys.get(job_id), state.jobs.get(job_id)
    if space is None:
        return
    is_current = job is not None and space.run == job.run and not is_round_over(job, space.round)
    _require(is_current, job_id, "keys outlive their run or round")
    _require(len(space.entries) == len(space.places) <= KEYS_MAX, job_id, "the keys are off")
    _require(0 <= space.bytes <= BYTES_MAX, job_id, "the bytes of the keys are off")
    latest = space.changes[-1].revision if space.changes else space.compacted
    _require(space.compacted <= latest <= space.revision, job_id, "the revisions are off")


def _check_counts(job: Job, tally: Tally) -> None:
    job_id = job.job_id
    has_round = job.phase in (Phase.RUNNING, Phase.STOPPING)
    _require(has_round == (job.round is not None), job_id, "phase and round disagree")
    _require(
        (job.phase is Phase.CLOSED) == (job.outcome is not None), job_id, "closed without outcome"
    )
    _require(job.counts.restart_count <= max(job.spec.max_restarts, 0), job_id, "budget overdrawn")
    if job.round is not None:
        header = job.round.header
        disorder = None if job.round.timeline is None else find_disorder(job.round.timeline)
        _require(disorder is None, job_id, f"the marks of the round are out of order: {disorder}")
        _require(header.number == job.round_number, job_id, "the round's number is not the last")
        _require(header.run == job.run, job_id, "the round is of another run")
        _require(tally.members <= header.group_world_size, job_id, "more members than places")
    else:
        _require(tally.members == 0, job_id, "members without a round")


def _check_ranks(job: Job, nodes: list[Node]) -> None:
    """Check that ranks are 0..world-1, each exactly once, and that members agree with the round."""
    round, job_id = job.round, job.job_id
    if round is None:
        return
    if not round.departures:  # an adopted round with a hole has departures, and is being stopped
        _require(is_gapless(round.members, round.header.world_size), job_id, "ranks have holes")
        _require(
            [member.assignment.group_rank for member in round.members]
            == list(range(round.header.group_world_size)),
            job_id,
            "group ranks have holes",
        )
    names = [member.name for member in round.members]
    _require(len(set(names)) == len(names), job_id, "a node has two places")
    places = {member.name: member.assignment for member in round.members}
    for node in nodes:
        if node.member:
            _require(
                places.get(node.name) == node.assignment,
                job_id,
                f"{node.name} has another place than the round says",
            )
