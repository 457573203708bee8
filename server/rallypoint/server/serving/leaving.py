"""What a coordinator of a single job leaves when it ends, for who asks when nothing listens."""

from __future__ import annotations

import asyncio

from rallypoint.base.log import get_logger
from rallypoint.server.api.events.views import event_message
from rallypoint.server.api.jobs.job import latest_run_message, past_run_message, summary_message
from rallypoint.server.api.jobs.picture import job_message
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.state.state import State
from rallypoint.server.serving.shard import Shard
from rallypoint.server.shell.coordinator import CoordinatorEnded
from rallypoint.v1 import event_service_pb2, job_service_pb2
from rallypoint.wire.last_runs import BYTES_MAX, LeftJob, write

log = get_logger()

JOBS_MAX = 16
"""Jobs of a coordinator that are kept, those that ended last. Most have one."""
EVENTS_MAX = 512
"""Events of a job that are kept: all that the coordinator has."""
WRITE_S_MAX = 2.0
"""How long it may take to write the file."""


async def leave(shard: Shard, name: str) -> None:
    """Write how the jobs went, if there were any.

    Args:
        shard: with the jobs; it still runs.
        name: of the file.
    """
    try:
        async with asyncio.timeout(WRITE_S_MAX):
            if jobs := await shard.read(collect):
                await asyncio.to_thread(write, name, jobs)
    except (CoordinatorEnded, TimeoutError, OSError) as error:
        log.warning("last_runs_not_kept", why=str(error) or "the disk does not answer")


def collect(state: State, now_ms: int) -> tuple[LeftJob, ...]:
    """Return the jobs of a coordinator as it shows them at this moment."""
    jobs = sorted(state.jobs.values(), key=lambda job: _ended_ms(job, now_ms), reverse=True)
    left, size = list[LeftJob](), 0
    for job in jobs[:JOBS_MAX]:
        one = _collect_job(state, job, now_ms)
        size += sum(map(len, (one.job, one.summary, one.runs, one.events)))
        if left and size > BYTES_MAX:
            break
        left.append(one)
    return tuple(left)


def _ended_ms(job: Job, now_ms: int) -> int:
    return now_ms if job.closed_ms is None else job.closed_ms


def _collect_job(state: State, job: Job, now_ms: int) -> LeftJob:
    runs = [latest_run_message(job, state.clocks, now_ms)]
    runs += [past_run_message(run, state.clocks, now_ms) for run in reversed(job.runs)]
    events = state.events.find(job.job_id, 0, EVENTS_MAX).events
    shown = [event_message(event, state.clocks, now_ms) for event in events]
    return LeftJob(
        job=job_message(state, job, now_ms).SerializeToString(),
        summary=summary_message(state, job, now_ms).SerializeToString(),
        runs=job_service_pb2.ListRunsResponse(runs=runs).SerializeToString(),
        events=event_service_pb2.ListEventsResponse(events=shown).SerializeToString(),
    )
