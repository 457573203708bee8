"""The one way into the core: (state, input, now) -> changes, records, effects, reason."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, assert_never

from rallypoint.server.core import inputs
from rallypoint.server.core.adoption import adopt
from rallypoint.server.core.deadlines import DeadlineKey, DeadlineKind
from rallypoint.server.core.desired import tell_nodes
from rallypoint.server.core.drains import ask_to_drain, reason_of_leaving
from rallypoint.server.core.effects import Effect, Record, Refusal
from rallypoint.server.core.health import cordon, end_quarantines, uncordon
from rallypoint.server.core.model import (
    LOST_MAX,
    Activity,
    Consequence,
    JobId,
    NodeName,
    Outcome,
    Phase,
    RoundReason,
    SessionId,
    Verdict,
    VerdictCause,
)
from rallypoint.server.core.path import note_stall
from rallypoint.server.core.reports import heartbeat, report
from rallypoint.server.core.rounds import REMEMBERED_MS, advance, close, stop
from rallypoint.server.core.sessions import broken, forget, hello, lose
from rallypoint.server.core.state import Delta, Draft, State


class Transition(NamedTuple):
    """What one step changes, journals and causes. `state.apply` carries the changes out."""

    delta: Delta
    records: tuple[Record, ...]
    """To be journalled before any effect is carried out."""
    effects: tuple[Effect, ...]
    """In order."""
    refusal: Refusal | None
    """Why the input was refused; then the changes are empty. None when it was taken."""
    jobs: tuple[JobId, ...]
    """Known jobs whose facts the step may have changed, for the check that follows."""


def step(state: State, said: inputs.Input, now_ms: int) -> Transition:
    """Decide what one input means. Changes nothing by itself.

    Args:
        state: what is known; not changed.
        said: what happened, validated.
        now_ms: journal time, not lower than at any earlier step; for a heartbeat, when it came,
            which may be up to a turn earlier: it only renews a lease.

    Returns:
        The transition. A `TimePassed` takes one expired deadline at a time: repeat it while
        `state.next_deadline_ms()` is not after `now_ms`.
    """
    draft = Draft(state, now_ms)
    if isinstance(said, inputs.Heartbeat):
        refusal = heartbeat(draft, said)
        return Transition(draft.delta(), (), (), refusal, ())
    refusal = _take(draft, said)
    if refusal is not None:
        return _refused(state, now_ms, draft, refusal)
    for session, text in draft.leaving:
        node = draft.the_node(session)
        lose(draft, node, reason_of_leaving(node), text)
    jobs = _touched_jobs(draft, said)
    for job_id in jobs:
        advance(draft, job_id)
    tell_nodes(draft)
    known = tuple(job_id for job_id in jobs if draft.job(job_id) is not None)
    return Transition(draft.delta(), tuple(draft.records), tuple(draft.effects), None, known)


def _refused(state: State, now_ms: int, draft: Draft, refusal: Refusal) -> Transition:
    """Keep only the words of a refusal: a refused input changes nothing."""
    effects = tuple(draft.effects)
    return Transition(Draft(state, now_ms).delta(), (), effects[-1:], refusal, ())


def _touched_jobs(draft: Draft, said: inputs.Input) -> tuple[JobId, ...]:
    found: dict[JobId, None] = {}
    if isinstance(said, inputs.Hello):
        found[said.identity.job_id] = None
    for job_id in draft.changed_jobs():
        found[job_id] = None
    return tuple(found)


def _take(draft: Draft, said: inputs.Input) -> Refusal | None:  # noqa: C901  # one flat case per input
    match said:
        case inputs.Hello():
            return hello(draft, said)
        case inputs.Heartbeat():
            return heartbeat(draft, said)
        case inputs.Broken(sender=sender):
            return broken(draft, sender)
        case inputs.Cordon():
            return cordon(draft, said)
        case inputs.Uncordon():
            return uncordon(draft, said)
        case inputs.TimePassed():
            _expire(draft)
            return None
        case inputs.DrainNode():
            return ask_to_drain(draft, said)
        case inputs.Stalled(late_ms=late_ms):
            _note_stall(draft, late_ms)
            return None
        case inputs.JobBroken(job_id=job_id, report=text):
            _fail_broken(draft, job_id, text)
            return None
        case (
            inputs.Ready()
            | inputs.Started()
            | inputs.Refused()
            | inputs.Exited()
            | inputs.Succeeded()
            | inputs.Blocked()
            | inputs.Draining()
            | inputs.Goodbye()
        ):
            return report(draft, said)
        case _:
            assert_never(said)


def _note_stall(draft: Draft, late_ms: int) -> None:
    """Suspect the path for the coordinator's own lease if any agent may have given it up."""
    shortest_ms, suspected_ms = draft.state.shortest_lease_ms(), draft.state.own_lease_ms()
    draft.put_path(note_stall(draft.path, late_ms, draft.now_ms, shortest_ms, suspected_ms))


def _expire(draft: Draft) -> None:
    """Take the earliest deadline if it is due."""
    first = draft.state.deadlines.first()
    if first is None or first[0] > draft.now_ms:
        return
    key = first[1]
    draft.set_deadline(key[0], key[1], None)
    if key[0] in (DeadlineKind.LEASE, DeadlineKind.GRACE):
        _expire_session(draft, key, first[0])
    elif key[0] is DeadlineKind.HEALTH:
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
        if draft.path.is_suspected(draft.now_ms) and draft.now_ms < return_by_ms:
            draft.set_deadline(DeadlineKind.GRACE, node.session, return_by_ms)
            return
        seconds = (due_ms - node.broke_ms) / 1000
        text = f"its connection broke and did not come back within {seconds:g} s"
    else:
        lease_ms = draft.state.lease_ms(node.identity.spec)
        text = f"it was silent for longer than its lease of {lease_ms / 1000:g} s"
        node = node._replace(broke_ms=draft.now_ms - lease_ms)  # when it was last heard
    lose(draft, node, RoundReason.NODE_LOST, text)


def _expire_job(draft: Draft, key: DeadlineKey) -> None:
    kind, job_id = key[0], JobId(key[1])
    if kind is DeadlineKind.WINDOW:
        draft.close_window()
        for known in list(draft.state.jobs):
            adopt(draft, known)
            draft.put_job(draft.the_job(known))  # every job may seal from here on
        return
    job = draft.job(job_id)
    if job is None:
        return
    match kind:
        case DeadlineKind.FORMING | DeadlineKind.GROWTH | DeadlineKind.DRAIN | DeadlineKind.CULPRIT:
            draft.put_job(job)  # `advance` looks again
        case DeadlineKind.START if job.phase is Phase.RUNNING:
            assert job.round is not None
            names = _set_aside(draft, job_id, only=Activity.ASSIGNED)
            job = replace(job, round=replace(job.round, overdue=names[:LOST_MAX]))
            stop(draft, job, RoundReason.START_OVERDUE)
        case DeadlineKind.STOP if job.phase is Phase.STOPPING:
            _set_aside(draft, job_id, only=None)
            draft.put_job(job)
        case DeadlineKind.ABANDON if draft.tally(job_id).nodes == 0:
            close(draft, job, Outcome.ABANDONED, job.verdict)
        case DeadlineKind.FORGET if job.phase is Phase.CLOSED:
            if draft.tally(job_id).nodes == 0:
                forget(draft, job)
            else:
                draft.set_deadline(kind, job_id, draft.now_ms + REMEMBERED_MS)


def _set_aside(draft: Draft, job_id: JobId, *, only: Activity | None) -> tuple[NodeName, ...]:
    """Let nobody wait any longer for the members that are overdue; return their names."""
    names: list[NodeName] = []
    for node in draft.nodes_of(job_id):
        if node.is_pending and (only is None or node.activity is only):
            draft.put_node(node._replace(set_aside=True))
            names.append(node.name)
    return tuple(names)


def _fail_broken(draft: Draft, job_id: JobId, text: str) -> None:
    job = draft.job(job_id)
    if job is None or job.phase is Phase.CLOSED:
        return
    verdict = Verdict(
        VerdictCause.INTERNAL,
        job.round_number,
        None,
        f"the coordinator found its own state of this job broken: {text}",
        consequence=Consequence.ENDED,
    )
    close(draft, job, Outcome.FAILED, verdict)
