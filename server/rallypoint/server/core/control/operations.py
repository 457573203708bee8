"""Operations on whole jobs.

Each may be sent again: with the same request id it is done once, and without one it changes nothing
where its goal is reached already. A run or round in the request guards against a late one.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.control.requests import note_done, was_done
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import JobUpdated, PauseEnded
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import Round, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, Verdict, VerdictCause
from rallypoint.server.core.rounds.rounds import stop
from rallypoint.server.core.rounds.settling import close
from rallypoint.server.core.sessions.sessions import forget_job
from rallypoint.server.core.state.draft import Draft


def operate(draft: Draft, operation: inputs.Operation) -> Refusal | None:
    """Carry out an operation; do nothing if an earlier attempt was."""
    job = draft.job(operation.job_id)
    if job is None:
        return Refusal(RefusalKind.UNKNOWN_JOB, (("job_id", operation.job_id),))
    if was_done(job, operation):
        return None
    match operation:
        case inputs.CancelJob():
            refusal = _cancel(draft, job, operation)
        case inputs.RestartJob():
            refusal = _restart(draft, job, operation)
        case inputs.UpdateJob():
            refusal = _update(draft, job, operation)
        case inputs.DeleteJob():
            refusal = _delete(draft, job)
    if refusal is None:
        note_done(draft, operation)
    return refusal


def _cancel(draft: Draft, job: Job, operation: inputs.CancelJob) -> Refusal | None:
    """End the run. One that has ended keeps its outcome."""
    if job.phase is Phase.CLOSED or (operation.run and operation.run != job.run):
        return None
    text = operation.reason or "an operator requested it"
    verdict = Verdict(
        VerdictCause.CANCELLED,
        job.round_number,
        None,
        f"the job was cancelled: {text}",
        consequence=Consequence.ENDED,
    )
    close(draft, job, Outcome.CANCELLED, verdict)
    return None


def _restart(draft: Draft, job: Job, operation: inputs.RestartJob) -> Refusal | None:
    """Stop the running round; another one follows. A pause between rounds ends."""
    if job.phase is Phase.CLOSED:
        return _ended(job)
    if operation.round and operation.round != job.round_number:
        return None  # a later round runs already
    if job.phase is Phase.RUNNING:
        draft.emit(job.job_id, "restart_requested", why=operation.reason)
        stop(draft, job, RoundReason.RESTART_REQUESTED)
    elif job.phase is Phase.FORMING and job.backoff_until_ms > draft.now_ms:
        draft.emit(job.job_id, "restart_requested", why=operation.reason)
        draft.put_job(replace(job, backoff_until_ms=draft.now_ms))
        draft.records.append(PauseEnded(job.job_id, draft.now_ms))
    return None


def _update(draft: Draft, job: Job, operation: inputs.UpdateJob) -> Refusal | None:
    """Change the specification of the run. A round that does not fit it any more is stopped."""
    if job.phase is Phase.CLOSED:
        return _ended(job)
    spec = _changed(job.spec, operation)
    if spec.min_nodes > spec.max_nodes:
        facts = (("min_nodes", spec.min_nodes), ("max_nodes", spec.max_nodes))
        return Refusal(RefusalKind.SPEC_IMPOSSIBLE, facts)
    spec = replace(spec, max_restarts=max(spec.max_restarts, job.counts.restart_count))
    if spec == job.spec:
        return None
    fields = job.updated | operation.fields
    job = replace(job, spec=spec, updated=fields)
    draft.put_job(job)
    draft.records.append(JobUpdated(job.job_id, spec, fields))
    draft.touch_all(job.job_id)  # orders carry the budget
    draft.emit(
        job.job_id,
        "job_updated",
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        max_restarts=spec.max_restarts,
    )
    if job.phase is Phase.RUNNING and job.round is not None and not _fits(spec, job.round):
        stop(draft, job, RoundReason.RESIZED)
    return None


def _changed(spec: JobSpec, operation: inputs.UpdateJob) -> JobSpec:
    if operation.min_nodes is not None:
        spec = replace(spec, min_nodes=operation.min_nodes)
    if operation.max_nodes is not None:
        spec = replace(spec, max_nodes=operation.max_nodes)
    if operation.max_restarts is not None:
        spec = replace(spec, max_restarts=operation.max_restarts)
    return spec


def _fits(spec: JobSpec, round: Round) -> bool:
    return spec.min_nodes <= round.header.group_world_size <= spec.max_nodes


def _delete(draft: Draft, job: Job) -> Refusal | None:
    """Forget a job that has ended everywhere."""
    facts = (("job_id", job.job_id), ("run", job.run))
    if job.phase is not Phase.CLOSED:
        return Refusal(RefusalKind.JOB_OPEN, facts)
    if draft.tally(job.job_id).nodes > 0:
        # An agent that has not learned the outcome would begin another run.
        return Refusal(RefusalKind.PREVIOUS_RUN_ENDING, facts)
    forget_job(draft, job, "an operator deleted it", event="job_deleted")
    return None


def _ended(job: Job) -> Refusal:
    assert job.outcome is not None
    facts = (("job_id", job.job_id), ("run", job.run), ("outcome", job.outcome.value))
    return Refusal(RefusalKind.JOB_ENDED, facts)
