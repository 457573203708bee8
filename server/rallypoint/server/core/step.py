"""The entry to the core: (state, input, now) -> changes, records, effects, reason."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from msgspec.structs import replace

from rallypoint.server.core.barriers.arrivals import receive_arrival
from rallypoint.server.core.barriers.ends import break_barriers, expire_barriers
from rallypoint.server.core.containment import internal_verdict
from rallypoint.server.core.keys import drop_keys, receive_writes
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Effect
from rallypoint.server.core.messages.records import Record
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.network import note_stall
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import LOST_MAX, RoundReason
from rallypoint.server.core.operations import operate
from rallypoint.server.core.rounds.desired import send_desired
from rallypoint.server.core.rounds.drains import reason_of_leaving
from rallypoint.server.core.rounds.hangs import receive_examined
from rallypoint.server.core.rounds.progress import receive_progress
from rallypoint.server.core.rounds.rounds import advance, stop
from rallypoint.server.core.rounds.settling import REMEMBERED_MS, abandoned, close
from rallypoint.server.core.sessions.adoption import adopt
from rallypoint.server.core.sessions.opening import forget_job
from rallypoint.server.core.sessions.reports import receive_heartbeat, receive_report
from rallypoint.server.core.sessions.sessions import (
    note_broken_stream,
    receive_hello,
    remove_node,
)
from rallypoint.server.core.state.deadlines import DeadlineKey, DeadlineKind
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.state import NO_CHANGES, Delta, State
from rallypoint.server.core.verdicts.blame import with_older_failures
from rallypoint.server.core.verdicts.health import end_quarantines


class Transition(NamedTuple):
    """The changes, records and effects of one step. `state.apply` applies the changes."""

    delta: Delta
    records: tuple[Record, ...]
    """To be journalled before any effect is carried out."""
    effects: tuple[Effect, ...]
    """In order."""
    refusal: Refusal | None
    """Why the input was refused; then the changes are empty. None when it was accepted."""
    jobs: tuple[JobId, ...]
    """Known jobs whose facts the step may have changed, for the check that follows."""


def step(state: State, input: inputs.Input, now_ms: int) -> Transition:
    """Decide the consequences of one input. Changes nothing by itself.

    Args:
        state: the current state; not changed.
        input: what happened; already validated.
        now_ms: journal time, not lower than at any earlier step; for a heartbeat, the time of its
            arrival, which may be up to a turn earlier: it only renews a lease.

    Returns: The transition. A `TimePassed` handles one expired deadline: repeat it while
        `state.next_deadline_ms()` is not after `now_ms`.
    """
    draft = Draft(state, now_ms)
    if isinstance(input, inputs.Heartbeat):
        refusal = receive_heartbeat(draft, input)
        return Transition(draft.delta(), (), tuple(draft.effects), refusal, ())
    if isinstance(input, inputs.Arrive | inputs.WriteKeys | inputs.Progressed):
        return _step_of_worker(draft, input)
    refusal = _dispatch(draft, input)
    if refusal is not None:
        return _refused(draft, refusal)
    for session, text in draft.leaving:
        node = draft.require_node(session)
        remove_node(draft, node, reason_of_leaving(node), text)
    jobs = _touched_jobs(draft, input)
    for job_id in jobs:
        advance(draft, job_id)
        break_barriers(draft, job_id)
        drop_keys(draft, job_id)
    send_desired(draft)
    draft.log_events()
    delta = draft.delta(tuple(draft.changed_jobs()))
    known = tuple(job_id for job_id in jobs if draft.job(job_id) is not None)
    return Transition(delta, tuple(draft.records), tuple(draft.effects), None, known)


def _step_of_worker(
    draft: Draft, input: inputs.Arrive | inputs.WriteKeys | inputs.Progressed
) -> Transition:
    """Step what a worker shares or reports. It moves no round and gives no node an order."""
    refusal = _dispatch(draft, input)
    if refusal is not None:
        return _refused(draft, refusal)
    jobs = tuple(draft.changed_jobs())
    draft.log_events()
    return Transition(draft.delta(jobs), tuple(draft.records), tuple(draft.effects), None, jobs)


def _refused(draft: Draft, refusal: Refusal) -> Transition:
    """Return the transition of a refused input: only the answer, and no changes."""
    return Transition(NO_CHANGES, (), tuple(draft.effects[-1:]), refusal, ())


def _touched_jobs(draft: Draft, input: inputs.Input) -> tuple[JobId, ...]:
    jobs: dict[JobId, None] = {}
    if isinstance(input, inputs.Hello):
        jobs[input.identity.job_id] = None
    for job_id in draft.changed_jobs():
        jobs[job_id] = None
    return tuple(jobs)


def _dispatch(draft: Draft, input: inputs.Input) -> Refusal | None:  # noqa: C901  # one flat case per input
    if isinstance(input, inputs.Report):
        return receive_report(draft, input)
    if isinstance(input, inputs.Operation):
        return operate(draft, input)
    match input:
        case inputs.Hello():
            return receive_hello(draft, input)
        case inputs.Heartbeat():
            return receive_heartbeat(draft, input)
        case inputs.Arrive():
            return receive_arrival(draft, input)
        case inputs.WriteKeys():
            return receive_writes(draft, input)
        case inputs.Progressed():
            return receive_progress(draft, input)
        case inputs.Broken(sender=sender, is_relay=is_relay):
            return note_broken_stream(draft, sender, is_relay=is_relay)
        case inputs.TimePassed():
            _expire(draft)
            return None
        case inputs.Stalled(late_ms=late_ms):
            _note_stall(draft, late_ms)
            return None
        case inputs.Examined():
            receive_examined(draft, input)
            return None
        case inputs.JobBroken(job_id=job_id, report=text):
            _fail_broken(draft, job_id, text)
            return None
        case _:
            assert_never(input)


def _note_stall(draft: Draft, late_ms: int) -> None:
    """Suspect the network for the coordinator's own lease if agents may have given up streams.

    Failures became older meanwhile, although journal time stood.
    """
    shortest_ms, suspected_ms = draft.state.shortest_lease_ms(), draft.state.own_lease_ms()
    network = note_stall(draft.network, late_ms, draft.now_ms, shortest_ms, suspected_ms)
    draft.put_network(network)
    for job in draft.state.jobs.values():
        older = None if job.round is None else with_older_failures(job.round, late_ms)
        if older is not job.round:
            draft.put_job(replace(job, round=older))


def _expire(draft: Draft) -> None:
    """Act on the earliest deadline if it is due."""
    first = draft.state.deadlines.first()
    if first is None or first[0] > draft.now_ms:
        return
    key = first[1]
    draft.set_deadline(key[0], key[1], None)
    if key[0] in (DeadlineKind.LEASE, DeadlineKind.GRACE):
        _expire_session(draft, key, first[0])
    elif key[0] is DeadlineKind.WINDOW:
        draft.close_window()
        for job_id in draft.state.jobs:
            # A step for each job: one that cannot be adopted must not hold up the others.
            draft.set_deadline(DeadlineKind.ADOPT, job_id, first[0])
    elif key[0] is DeadlineKind.QUARANTINE_END:
        end_quarantines(draft, JobId(key[1]))
    else:
        _expire_job(draft, key)


def _expire_session(draft: Draft, key: DeadlineKey, due_ms: int) -> None:
    node = draft.node(SessionId(key[1]))
    if node is None:
        return
    if key[0] is DeadlineKind.GRACE:
        assert node.broke_ms is not None
        return_by_ms = node.broke_ms + draft.state.return_ms(node.identity.spec)
        is_suspected = draft.is_network_suspected(draft.require_job(node.job_id))
        if is_suspected and draft.now_ms < return_by_ms:
            draft.set_deadline(DeadlineKind.GRACE, node.session, return_by_ms)
            return
        seconds = (due_ms - node.broke_ms) / 1000
        text = f"its connection broke and was not restored within {seconds:g} s"
        if node.is_awaited:
            text = (
                f"it did not return within {seconds:g} s after the coordinator started again,"
                " or another took over"
            )
    else:
        lease_ms = draft.state.lease_ms(node.identity.spec)
        text = f"it was silent for longer than its lease of {lease_ms / 1000:g} s"
        node = replace(node, broke_ms=draft.now_ms - lease_ms)  # when its last message arrived
    remove_node(draft, node, RoundReason.NODE_LOST, text)


def _expire_job(draft: Draft, key: DeadlineKey) -> None:
    kind, job_id = key[0], JobId(key[1])
    job = draft.job(job_id)
    if job is None:
        return
    match kind:
        case DeadlineKind.ADOPT:
            adopt(draft, job_id)
            draft.put_job(draft.require_job(job_id))  # it may seal from now on
        case (
            DeadlineKind.FORMING
            | DeadlineKind.GROWTH
            | DeadlineKind.DRAIN
            | DeadlineKind.CULPRIT
            | DeadlineKind.HANG
        ):
            draft.put_job(job)  # so that `advance` checks it
        case DeadlineKind.BARRIER:
            expire_barriers(draft, job_id)
        case DeadlineKind.START if job.phase is Phase.RUNNING:
            assert job.round is not None
            names = _set_overdue_aside(draft, job_id, only=NodeState.ASSIGNED)
            job = replace(job, round=replace(job.round, overdue=names[:LOST_MAX]))
            stop(draft, job, RoundReason.START_OVERDUE)
        case DeadlineKind.STOP if job.phase is Phase.STOPPING:
            _set_overdue_aside(draft, job_id, only=None)
            draft.put_job(job)
        case DeadlineKind.ABANDON if draft.tally(job_id).nodes == 0:
            close(draft, job, Outcome.ABANDONED, abandoned(job))
        case DeadlineKind.FORGET if job.phase is Phase.CLOSED:
            if draft.tally(job_id).nodes == 0:
                forget_job(draft, job, "it ended a day ago")
            else:
                draft.set_deadline(kind, job_id, draft.now_ms + REMEMBERED_MS)


def _set_overdue_aside(
    draft: Draft, job_id: JobId, *, only: NodeState | None
) -> tuple[NodeName, ...]:
    """Stop waiting for the overdue members; return their names."""
    names: list[NodeName] = []
    for node in draft.nodes_of(job_id):
        if node.is_pending and (only is None or node.state is only):
            draft.put_node(replace(node, set_aside=True))
            names.append(node.name)
    return tuple(names)


def _fail_broken(draft: Draft, job_id: JobId, text: str) -> None:
    job = draft.job(job_id)
    if job is None or job.phase is Phase.CLOSED:
        return
    close(draft, job, Outcome.FAILED, internal_verdict(job.round_number, text))
