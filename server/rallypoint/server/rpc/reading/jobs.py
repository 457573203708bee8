"""Pages of jobs: filtered, ordered, and built in slices.

A token names the last entry of its page, not a number of entries. So it stays valid when jobs come
and go: the others are neither left out nor shown twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from rallypoint.base.log import get_logger, new_incident
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.reading.lists import JobList, Place
from rallypoint.server.rpc.reading.pace import SLICE_S, Pace
from rallypoint.server.rpc.reading.pages import FRAME_BYTES_MAX, PAGE_BYTES_MAX
from rallypoint.server.rpc.views.explanations import Explain
from rallypoint.server.rpc.views.job import summary_message
from rallypoint.v1 import job_pb2, job_service_pb2

log = get_logger()


class _Start(Struct):
    """A page as its first turn sees it."""

    ids: list[JobId]
    """The jobs after its token, in order."""
    job_count: int
    """All jobs of the list."""
    revision: int


class _Slice(Struct):
    """Some of the jobs of a page."""

    jobs: list[tuple[Place, job_pb2.JobSummary]]
    taken: int
    """How many of the jobs of the page it is about; some may have changed meanwhile."""


async def read_jobs(
    coordinator: Coordinator, pace: Pace, wanted: JobList, size: int, token: str, explain: Explain
) -> job_service_pb2.ListJobsResponse:
    """Return a page of jobs.

    Args:
        coordinator: read in several turns; each shows what is in the journal then.
        pace: this reader's and all others'.
        wanted: the list.
        size: most jobs, 1 or more.
        token: of the page; empty for the first one.
        explain: returns what a job waits for.

    Raises:
        InvalidMessage: when the token is of another list.
    """
    after, left, place, last = wanted.read_token(token), PAGE_BYTES_MAX, 0, None
    async with pace.turn():
        start = await coordinator.read(partial(_begin, wanted, after))
        page = job_service_pb2.ListJobsResponse(job_count=start.job_count, revision=start.revision)
        while place < len(start.ids):
            if len(page.jobs) == size:
                assert last is not None
                page.next_page_token = wanted.write_token(last)
                break
            ids = start.ids[place : place + size - len(page.jobs)]
            part = await coordinator.read(partial(_take_slice, wanted, ids, explain))
            place += part.taken
            for at, job in part.jobs:
                left -= job.ByteSize() + FRAME_BYTES_MAX
                if left < 0 and last is not None:
                    page.next_page_token = wanted.write_token(last)
                    return page
                page.jobs.append(job)
                last = at
    return page


def _begin(wanted: JobList, after: Place | None, state: State, now_ms: int) -> _Start:
    places = sorted(wanted.place(job) for job in state.jobs.values() if wanted.has(job))
    ids = [JobId(place[1]) for place in places if after is None or place > after]
    return _Start(ids, len(places), state.revision)


def _take_slice(
    wanted: JobList, ids: Sequence[JobId], explain: Explain, state: State, now_ms: int
) -> _Slice:
    """Return the next jobs, as many as can be shown in the time of a slice, but at least one."""
    ends_s = time.monotonic() + SLICE_S
    part = _Slice([], 0)
    for job_id in ids:
        part.taken += 1
        job = state.jobs.get(job_id)
        if job is not None and wanted.has(job):
            part.jobs.append((wanted.place(job), show_summary(state, job, now_ms, explain)))
        if time.monotonic() >= ends_s:
            break
    return part


def show_summary(state: State, job: Job, now_ms: int, explain: Explain) -> job_pb2.JobSummary:
    """Return a job for a list; only its id if a bug prevents more, so that the others are shown."""
    try:
        return summary_message(state, job, now_ms, explain)
    except Exception as error:  # one job must not hide the others
        incident = new_incident()
        log.error("rendering_failed", job_id=job.job_id, incident=incident, exc_info=error)
        return job_pb2.JobSummary(job_id=job.job_id, revision=state.revision_of(job.job_id))
