"""JobService: answers show only decisions that are in the journal."""

from __future__ import annotations

import asyncio

import grpc

from rallypoint.base.log import get_logger, new_incident
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.convert.checks import InvalidMessage
from rallypoint.server.rpc.convert.requests import to_job_id, to_page
from rallypoint.server.rpc.errors import limit_status, stalled_status, unknown_job_status
from rallypoint.server.rpc.outbox import Outboxes
from rallypoint.server.rpc.stalls import Stalls
from rallypoint.server.rpc.status import abort_with, invalid_status
from rallypoint.server.rpc.views.job import job_message
from rallypoint.server.rpc.watchers import Rendering, TooManyWatchers, Watched
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.wire.channel import MESSAGE_BYTES_MAX

FRAME_BYTES_MAX = 8
"""Bytes that an answer adds to each job."""
PAGE_BYTES_MAX = MESSAGE_BYTES_MAX - 1_024
"""Longest page, without its token. A job with a long traceback takes 16 KB."""

_WatchContext = grpc.aio.ServicerContext[service_pb2.WatchJobRequest, bytes]
"""The interceptor lets answers pass that are encoded already."""

log = get_logger()

STALL_S_MAX = 30.0
"""Longest time that a watcher may take to read an answer. An agent has only a lease, but a person
may suspend a watching program for a moment."""


class _UnknownJob(Exception):
    """There is no such job. A KeyError would also come from a bug in a view."""


class JobService(service_grpc.JobServiceServicer):
    """Serves people and programs that read jobs."""

    def __init__(self, coordinator: Coordinator, outboxes: Outboxes) -> None:
        """Read from `coordinator`; `outboxes` wakes watchers when a job changes."""
        self._coordinator = coordinator
        self._watchers = outboxes.watchers
        self._stalls = Stalls()

    async def GetJob(
        self,
        request: service_pb2.GetJobRequest,
        context: grpc.aio.ServicerContext[service_pb2.GetJobRequest, service_pb2.GetJobResponse],
    ) -> service_pb2.GetJobResponse:
        """Return one job."""
        try:
            job_id = to_job_id(request)
            return service_pb2.GetJobResponse(job=await self._job(job_id))
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        except _UnknownJob:
            await abort_with(context, unknown_job_status(request.job_id))

    async def ListJobs(
        self,
        request: service_pb2.ListJobsRequest,
        context: grpc.aio.ServicerContext[
            service_pb2.ListJobsRequest, service_pb2.ListJobsResponse
        ],
    ) -> service_pb2.ListJobsResponse:
        """Return a page of jobs."""
        try:
            size, after = to_page(request)
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))

        def answer(state: State, now_ms: int) -> service_pb2.ListJobsResponse:
            return _show_page(state, after, size, now_ms)

        return await self._coordinator.read(answer)

    async def WatchJob(  # type: ignore[override]  # a handler may write instead of yield
        self,
        request: service_pb2.WatchJobRequest,
        context: _WatchContext,
    ) -> None:
        """Send the job at once and after every change."""
        try:
            job_id = to_job_id(request)
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        host = host_of(context.peer())
        try:
            watched = self._watchers.enter(job_id, host)
        except TooManyWatchers as full:
            await abort_with(context, limit_status(full.limit, full.value))
        try:
            await self._show_all(watched, context)
        finally:
            self._watchers.leave(watched, host)

    async def _show_all(self, watched: Watched, context: _WatchContext) -> None:
        """Send a watcher every rendering of the job, until the job is over or forgotten."""
        seen: Rendering | None = None
        try:
            async with asyncio.timeout(None) as scope:
                try:
                    while seen is None or not seen.is_final:
                        seen = await watched.next(seen, self._render)
                        self._stalls.begin(scope, STALL_S_MAX)
                        await context.write(seen.answer)
                        self._stalls.end(scope)
                finally:
                    self._stalls.end(scope)
        except _UnknownJob:
            if seen is None:
                await abort_with(context, unknown_job_status(watched.job_id))
        except TimeoutError:
            log.warning("watcher_stalled", limit_s=STALL_S_MAX)
            await abort_with(context, stalled_status(STALL_S_MAX))

    async def _render(self, watched: Watched) -> Rendering:
        """Render a job for its watchers.

        Raises:
            _UnknownJob: when there is none.
        """

        def answer(state: State, now_ms: int) -> Rendering:
            job = job_message(state, _find(state, watched.job_id), now_ms, whole=True)
            return Rendering(
                version=watched.version,
                answer=service_pb2.WatchJobResponse(job=job).SerializeToString(),
                nodes=len(job.nodes),
                is_final=job.phase == job_pb2.JOB_PHASE_CLOSED and not job.nodes,
            )

        return await self._coordinator.read(answer)

    async def _job(self, job_id: JobId) -> job_pb2.Job:
        """Return one whole job.

        Raises:
            _UnknownJob: when there is none.
        """

        def answer(state: State, now_ms: int) -> job_pb2.Job:
            return job_message(state, _find(state, job_id), now_ms, whole=True)

        return await self._coordinator.read(answer)


def _find(state: State, job_id: JobId) -> Job:
    job = state.jobs.get(job_id)
    if job is None:
        raise _UnknownJob
    return job


def _show_page(state: State, after: str, size: int, now_ms: int) -> service_pb2.ListJobsResponse:
    """Return up to `size` jobs with ids after `after`, fewer if they would exceed a message."""
    page, page_bytes = service_pb2.ListJobsResponse(), 0
    for job_id in sorted(job_id for job_id in state.jobs if job_id > after):
        if len(page.jobs) == size:
            page.next_page_token = page.jobs[-1].job_id
            break
        job = _show_part(state, job_id, now_ms)
        page_bytes += job.ByteSize() + FRAME_BYTES_MAX
        if page_bytes > PAGE_BYTES_MAX and page.jobs:
            page.next_page_token = page.jobs[-1].job_id
            break
        page.jobs.append(job)
    return page


def _show_part(state: State, job_id: JobId, now_ms: int) -> job_pb2.Job:
    """Return a job for a list; only its id if a bug prevents more, so that the others are shown."""
    try:
        return job_message(state, state.jobs[job_id], now_ms, whole=False)
    except Exception as error:  # one job must not hide the others
        incident = new_incident()
        log.error("rendering_failed", job_id=job_id, incident=incident, exc_info=error)
        return job_pb2.Job(job_id=job_id)


def host_of(peer: str) -> str:
    """Return the host of a gRPC peer such as ipv4:10.0.0.1:4711."""
    return peer.rpartition(":")[0]
