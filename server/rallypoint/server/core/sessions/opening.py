"""Opens runs, for the first agent of a run or for an operator, and forgets jobs."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages.effects import JobChanged
from rallypoint.server.core.messages.records import JobForgotten
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Gone, Job
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.rounds.fences import SLACK_MS
from rallypoint.server.core.rounds.settling import with_run
from rallypoint.server.core.sessions.admission import find_idle, is_full
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft

TAKEOVER_MS = 8_000
"""How long agents may be without an answer while another coordinator takes over: up to 5 s until it
owns their shard, up to 2 s between two attempts to connect, and a second for the rest."""


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
        opened = _first_run(draft.gone(job_id), job_id, spec)
    else:
        opened = _next_run(job, spec)
    unknown_past_until_ms = opened.unknown_past_until_ms
    if draft.state.has_unknown_past and spec.fence_after_ms:
        unknown_past_until_ms = max(unknown_past_until_ms, spec.fence_after_ms + SLACK_MS)
    opened = replace(
        opened,
        run=max(least_run, opened.run),
        opened_ms=draft.now_ms,
        since_epoch=draft.epoch,
        forming_since_ms=draft.now_ms,
        launch_id=launch_id,
        unknown_past_until_ms=unknown_past_until_ms,
        spec_revision=draft.next_revision,
    )
    draft.put_job(opened)
    draft.set_deadline(DeadlineKind.FORGET, job_id, None)
    draft.emit(job_id, "run_opened", run=opened.run)
    _warn_of_fence(draft, job_id, spec)
    return opened


def _warn_of_fence(draft: Draft, job_id: JobId, spec: JobSpec) -> None:
    """Log a fence that stops the workers whenever another coordinator takes over."""
    least_ms = spec.shutdown_timeout_ms + TAKEOVER_MS
    if draft.state.timing.search_ms and 0 < spec.fence_after_ms < least_ms:
        facts = (("fence_after_s", spec.fence_after_ms // 1000), ("least_s", -(-least_ms // 1000)))
        draft.effects.append(JobChanged(job_id, "fence_too_short", facts))


def _first_run(gone: Gone, job_id: JobId, spec: JobSpec) -> Job:
    """Return the first run of a job; no number of a former job of the name is used again."""
    return Job(
        job_id=job_id,
        run=gone.ended_run + 1,
        spec=spec,
        opened_ms=0,
        round_number=gone.round_number,
        rounds_before=gone.round_number,
        operations=gone.operations,
        unknown_past_until_ms=gone.fenced_until_ms,
    )


def _next_run(job: Job, spec: JobSpec) -> Job:
    """Return the run after one that is closed."""
    return Job(
        job_id=job.job_id,
        run=job.run + 1,
        spec=spec,
        opened_ms=0,
        round_number=job.round_number,  # grows across all runs of the job
        rounds_before=job.round_number,
        history=job.history,
        runs=with_run(job),
        drain_requests=job.drain_requests,  # requests outlive the run
        operations=job.operations,
        health=job.health,
        fences=job.fences,
        unknown_past_until_ms=job.unknown_past_until_ms,
    )


def forget_job(draft: Draft, job: Job, why: str) -> None:
    """Remove a job without nodes by itself; `why` is for people."""
    drop_job(draft, job)
    draft.emit(job.job_id, "job_forgotten", run=job.run, why=why)


def drop_job(draft: Draft, job: Job) -> None:
    """Remove a job without nodes; no number of it is used again soon."""
    # The agents of a run that has not ended may come back to it.
    ended_run = job.run if job.phase is Phase.CLOSED else job.run - 1
    fences = (fence.until_ms for fence in job.fences)
    fenced_until_ms = max(job.unknown_past_until_ms, *fences, 0)
    left = Gone(ended_run, job.round_number, job.operations, fenced_until_ms)
    draft.remove_job(job.job_id, left)
    draft.records.append(JobForgotten(job.job_id, left))


def _make_room(draft: Draft) -> None:
    """Forget jobs without sessions if there is no room for another job."""
    for job in find_idle(draft) if is_full(draft) else ():
        forget_job(draft, job, "no node is connected, and another job needs the room")
