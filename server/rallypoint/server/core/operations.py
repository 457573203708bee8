"""Operations on jobs and their nodes.

Each may be sent again: with the same request id it is done once, and without one it changes nothing
where its goal is reached already. A run or round in the request guards against a late one.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.inputs import CreateJob, DeleteJob, Operation
from rallypoint.server.core.messages.refusals import (
    Limit,
    Refusal,
    RefusalKind,
    limit_reached,
    unknown_job,
)
from rallypoint.server.core.model.job import JOBS_MAX, OPERATIONS_MAX, Job
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import Round, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, Verdict, VerdictCause
from rallypoint.server.core.rounds.drains import request_drain
from rallypoint.server.core.rounds.rounds import stop
from rallypoint.server.core.rounds.settling import close
from rallypoint.server.core.sessions.admission import has_idle, is_full, previous_run_ending
from rallypoint.server.core.sessions.opening import drop_job, open_run
from rallypoint.server.core.sessions.sessions import remove_node
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.verdicts.health import cordon, uncordon


def operate(draft: Draft, operation: inputs.Operation) -> Refusal | None:
    """Carry out an operation; do nothing if an earlier attempt was."""
    if was_done(draft, operation):
        return None
    is_of_nodes = isinstance(operation, inputs.DrainNode | inputs.Cordon | inputs.Uncordon)
    is_known = draft.job(operation.job_id) is not None
    if draft.awaits_adoption(operation.job_id) and not (is_of_nodes and is_known):
        # The agents of a run that a former coordinator knew may still come.
        return Refusal(RefusalKind.NOT_READY)
    if (reused := check_id(draft, operation)) is not None:
        return reused
    refusal = _carry_out(draft, draft.job(operation.job_id), operation)
    if refusal is None:
        note_done(draft, operation)
    return refusal


def _carry_out(draft: Draft, job: Job | None, operation: inputs.Operation) -> Refusal | None:
    if isinstance(operation, inputs.CreateJob):
        return _create(draft, job, operation)
    if job is None:
        return unknown_job(operation.job_id)
    match operation:
        case inputs.CancelJob():
            return _cancel(draft, job, operation)
        case inputs.RestartJob():
            return _restart(draft, job, operation)
        case inputs.UpdateJob():
            return _update(draft, job, operation)
        case inputs.DeleteJob():
            return _delete(draft, job, operation)
        case inputs.DrainNode():
            return request_drain(draft, job, operation)
        case inputs.Cordon():
            return cordon(draft, job, operation)
        case inputs.Uncordon():
            uncordon(draft, job, operation)
            return None


def _create(draft: Draft, job: Job | None, operation: inputs.CreateJob) -> Refusal | None:
    """Open the next run of a job for agents that are still to come."""
    if job is None:
        if is_full(draft) and not has_idle(draft):
            return limit_reached(Limit.JOBS, JOBS_MAX)
    elif job.phase is not Phase.CLOSED:
        return Refusal(RefusalKind.JOB_EXISTS, (("job_id", job.job_id), ("run", job.run)))
    elif draft.tally(job.job_id).nodes > 0:
        return previous_run_ending(job)
    open_run(draft, operation.job_id, operation.spec)
    draft.emit(operation.job_id, "job_created")
    return None


def _cancel(draft: Draft, job: Job, operation: inputs.CancelJob) -> Refusal | None:
    """End the run. One that has ended keeps its outcome."""
    if operation.run > job.run:
        return _other_run(job)
    if operation.run and operation.run != job.run:
        return None
    if job.phase is not Phase.CLOSED:
        _close(draft, job, operation)
    if operation.give_up_silent_nodes:
        _give_up_silent(draft, job)
    return None


def _close(draft: Draft, job: Job, operation: inputs.CancelJob) -> None:
    text = operation.reason or "an operator requested it"
    verdict = Verdict(
        VerdictCause.CANCELLED,
        job.round_number,
        None,
        f"the job was cancelled: {text}",
        consequence=Consequence.ENDED,
    )
    close(draft, job, Outcome.CANCELLED, verdict)


def _give_up_silent(draft: Draft, job: Job) -> None:
    """Lose the nodes that have missed a heartbeat; fences hold as after any other loss.

    Where one of them is only cut off, its agent returns to a run that is over, and stops.
    """
    limit_ms = 2 * draft.state.heartbeat_ms(job.spec)
    for node in tuple(draft.nodes_of(job.job_id)):
        if draft.state.silent_ms(node, draft.now_ms) > limit_ms:
            remove_node(draft, node, RoundReason.NODE_LOST, "an operator gave it up: it is silent")


def _restart(draft: Draft, job: Job, operation: inputs.RestartJob) -> Refusal | None:
    """Stop the running round; another one follows. A pause between rounds ends."""
    if job.phase is Phase.CLOSED:
        return _ended(job)
    if operation.round and operation.round != job.round_number:
        return None  # it does not run any more
    if job.phase is Phase.RUNNING:
        draft.emit(job.job_id, "restart_requested", why=operation.reason)
        stop(draft, job, RoundReason.RESTART_REQUESTED, operation.reason)
    elif job.phase is Phase.FORMING and job.backoff_until_ms > draft.now_ms:
        draft.emit(job.job_id, "restart_requested", why=operation.reason)
        draft.put_job(replace(job, backoff_until_ms=draft.now_ms))
    return None


def _update(draft: Draft, job: Job, operation: inputs.UpdateJob) -> Refusal | None:
    """Change the specification of the run. A round that does not fit it any more is stopped."""
    if job.phase is Phase.CLOSED:
        return _ended(job)
    if operation.revision and operation.revision < job.spec_revision:
        known = (("job_id", job.job_id), ("revision", job.spec_revision))
        return Refusal(RefusalKind.SPEC_CHANGED, known)
    spec = replace(job.spec, **{name: getattr(operation, name) for name in operation.fields})
    if spec.min_nodes > spec.max_nodes:
        facts = (("min_nodes", spec.min_nodes), ("max_nodes", spec.max_nodes))
        return Refusal(RefusalKind.SPEC_IMPOSSIBLE, facts)
    spec = replace(spec, max_restarts=max(spec.max_restarts, job.counts.restart_count))
    if spec == job.spec:
        return None
    stops = _stops_round(job, spec)
    nodes = draft.tally(job.job_id).available
    if stops and operation.require_nodes and nodes < spec.min_nodes:
        missing = (("job_id", job.job_id), ("nodes", nodes), ("min_nodes", spec.min_nodes))
        return Refusal(RefusalKind.NODES_MISSING, missing)
    fields = job.updated | operation.fields
    revision = draft.next_revision
    job = replace(job, spec=spec, updated=fields, spec_revision=revision)
    draft.put_job(job)
    draft.touch_all(job.job_id)  # orders carry the budget
    draft.emit(
        job.job_id,
        "job_updated",
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        max_restarts=spec.max_restarts,
        why=operation.reason,
    )
    if stops:
        stop(draft, job, RoundReason.RESIZED, operation.reason)
    return None


def _stops_round(job: Job, spec: JobSpec) -> bool:
    """Return whether other numbers of nodes stop the running round: it does not fit them."""
    before = (job.spec.min_nodes, job.spec.max_nodes)
    if before == (spec.min_nodes, spec.max_nodes) or job.phase is not Phase.RUNNING:
        return False  # an adopted round may fit neither
    assert job.round is not None
    return not _fits(spec, job.round)


def _fits(spec: JobSpec, round: Round) -> bool:
    return spec.min_nodes <= round.header.group_world_size <= spec.max_nodes


def _delete(draft: Draft, job: Job, operation: inputs.DeleteJob) -> Refusal | None:
    """Forget a job that has ended everywhere."""
    if operation.run and operation.run != job.run:
        return _other_run(job)
    if job.phase is not Phase.CLOSED:
        return Refusal(RefusalKind.JOB_OPEN, (("job_id", job.job_id), ("run", job.run)))
    if draft.tally(job.job_id).nodes > 0:
        # An agent that has not learned the outcome would begin another run.
        return previous_run_ending(job)
    note_done(draft, operation)  # before the job is gone
    job = draft.require_job(job.job_id)
    drop_job(draft, job)
    draft.emit(job.job_id, "job_deleted", run=job.run, why="an operator requested it")
    return None


def _other_run(job: Job) -> Refusal:
    return Refusal(RefusalKind.LATER_RUN, (("job_id", job.job_id), ("run", job.run)))


def _ended(job: Job) -> Refusal:
    assert job.outcome is not None
    facts = (("job_id", job.job_id), ("run", job.run), ("outcome", job.outcome.value))
    return Refusal(RefusalKind.JOB_ENDED, facts)


def was_done(draft: Draft, operation: Operation) -> bool:
    """Return whether an earlier attempt of this request was carried out.

    What was done to a job that is gone matters to an attempt to create or delete it: there is
    nothing to do again. Any other attempt has nothing left to act on.
    """
    return bool(operation.request_id) and _key_of(operation) in _known(draft, operation)


def check_id(draft: Draft, operation: Operation) -> Refusal | None:
    """Refuse a request whose id belongs to another one: it would be taken for a repetition."""
    ids = {key.partition(" ")[0] for key in _known(draft, operation)}
    if not operation.request_id or operation.request_id not in ids:
        return None
    return Refusal(RefusalKind.REQUEST_ID_REUSED, (("request_id", operation.request_id),))


def _known(draft: Draft, operation: Operation) -> tuple[str, ...]:
    job = draft.job(operation.job_id)
    if job is not None:
        return job.operations
    if isinstance(operation, CreateJob | DeleteJob):
        return draft.gone(operation.job_id).operations
    return ()


def _key_of(operation: Operation) -> str:
    """Return what is remembered of a request: its id, which has no spaces, and a digest of it."""
    fields = msgspec.to_builtins(replace(operation, request_id=""), order="deterministic")
    content = type(operation).__name__.encode() + msgspec.json.encode(fields)
    return f"{operation.request_id} {sha256(content).hexdigest()[:16]}"


def note_done(draft: Draft, operation: Operation) -> None:
    """Remember the request; the oldest one is forgotten beyond the limit."""
    job = draft.job(operation.job_id)
    if job is None or not operation.request_id:
        return
    key = _key_of(operation)
    draft.put_job(replace(job, operations=(*job.operations, key)[-OPERATIONS_MAX:]))
