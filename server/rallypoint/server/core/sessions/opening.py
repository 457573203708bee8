"""Opens runs, for the first agent of a run or for an operator, and forgets jobs."""

from __future__ import annotations

from rallypoint.server.core.messages.records import JobForgotten, run_opened
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.rounds.fences import SLACK_MS
from rallypoint.server.core.rounds.settling import with_run
from rallypoint.server.core.sessions.admission import find_idle, is_full
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft


def open_run(
    draft: Draft, job_id: JobId, spec: JobSpec, launch_id: str = "", least_run: int = 0
) -> Job:
    """Open the next run of a job.

    Args:
        draft: the step.
        job_id: the job, which is unknown or whose latest run is closed.
        spec: specification of the run.
        launch_id: launch of the agent that the run is opened for; empty when there is none.
        least_run: the number of the run is at least this.

    Returns: The job.
    """
    job = draft.job(job_id)
    if job is None:
        _make_room(draft)
    unknown_past_until_ms = 0 if job is None else job.unknown_past_until_ms
    if draft.state.has_unknown_past and spec.fence_ms:
        unknown_past_until_ms = max(unknown_past_until_ms, spec.fence_ms + SLACK_MS)
    opened = Job(
        job_id=job_id,
        run=max(least_run, 1 if job is None else job.run + 1),
        spec=spec,
        opened_ms=draft.now_ms,
        since_epoch=draft.epoch,
        forming_since_ms=draft.now_ms,
        launch_id=launch_id,
        round_number=0 if job is None else job.round_number,  # grows across all runs of the job
        rounds_before=0 if job is None else job.round_number,
        history=() if job is None else job.history,
        runs=() if job is None else with_run(job),
        drain_requests=() if job is None else job.drain_requests,  # requests outlive the run
        operations=draft.forgotten(job_id) if job is None else job.operations,  # the same
        health=() if job is None else job.health,
        fences=() if job is None else job.fences,
        unknown_past_until_ms=unknown_past_until_ms,
    )
    draft.records.append(run_opened(opened))
    draft.put_job(opened)
    draft.set_deadline(DeadlineKind.FORGET, job_id, None)
    draft.emit(job_id, "run_opened", run=opened.run)
    return opened


def forget_job(draft: Draft, job: Job, why: str) -> None:
    """Remove a job without nodes by itself; `why` is for people."""
    drop_job(draft, job)
    draft.emit(job.job_id, "job_forgotten", run=job.run, why=why)


def drop_job(draft: Draft, job: Job) -> None:
    """Remove a job without nodes. What operators requested is remembered for a while."""
    draft.remove_job(job.job_id, job.operations)
    draft.records.append(JobForgotten(job.job_id, job.operations))


def _make_room(draft: Draft) -> None:
    """Forget jobs without sessions if there is no room for another job."""
    for job in find_idle(draft) if is_full(draft) else ():
        forget_job(draft, job, "no node is connected, and another job needs the room")
