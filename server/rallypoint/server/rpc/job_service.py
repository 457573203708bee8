"""JobService: answers show only decisions that are in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from rallypoint.server.coordinator import Coordinator
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.convert.checks import InvalidMessage
from rallypoint.server.rpc.convert.requests import to_job_id, to_page
from rallypoint.server.rpc.errors import unknown_job_status
from rallypoint.server.rpc.outbox import Outboxes
from rallypoint.server.rpc.status import abort_with, invalid_status
from rallypoint.server.rpc.views.job import job_message
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc

WATCH_INTERVAL_S = 0.05
"""Shortest time between two answers to one watcher. When a thousand nodes start at once, one answer
can show their thousand changes."""
WATCHED_NODES_PER_S_MAX = 2_000
"""Nodes in the answers to one watcher per second. Every answer holds all nodes of the job, so a
watcher of a thousand nodes gets two answers a second. They cost a few percent of a core."""


class JobService(service_grpc.JobServiceServicer):
    """Serves people and programs that read jobs."""

    def __init__(self, coordinator: Coordinator, outboxes: Outboxes) -> None:
        """Read from `coordinator`; `outboxes` wakes watchers when a job changes."""
        self._coordinator = coordinator
        self._outboxes = outboxes

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
        except LookupError:
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
            job_ids = sorted(job_id for job_id in state.jobs if job_id > after)
            page = job_ids[:size]
            return service_pb2.ListJobsResponse(
                jobs=[
                    job_message(state, state.jobs[job_id], now_ms, whole=False) for job_id in page
                ],
                next_page_token=page[-1] if len(job_ids) > len(page) else "",
            )

        return await self._coordinator.read(answer)

    async def WatchJob(
        self,
        request: service_pb2.WatchJobRequest,
        context: grpc.aio.ServicerContext[
            service_pb2.WatchJobRequest, service_pb2.WatchJobResponse
        ],
    ) -> AsyncIterator[service_pb2.WatchJobResponse]:
        """Send the job at once and after every change."""
        try:
            job_id = to_job_id(request)
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        changed = self._outboxes.watch(job_id)
        is_first = True
        loop = asyncio.get_running_loop()
        try:
            while True:
                changed.clear()
                began_s = loop.time()
                job = await self._job(job_id)
                yield service_pb2.WatchJobResponse(job=job)
                is_first = False
                if job.phase == job_pb2.JOB_PHASE_CLOSED and not job.nodes:
                    return
                await changed.wait()
                interval_s = max(WATCH_INTERVAL_S, len(job.nodes) / WATCHED_NODES_PER_S_MAX)
                await asyncio.sleep(max(0.0, began_s + interval_s - loop.time()))
        except LookupError:
            if is_first:
                await abort_with(context, unknown_job_status(request.job_id))
        finally:
            self._outboxes.unwatch(job_id, changed)

    async def _job(self, job_id: JobId) -> job_pb2.Job:
        """Return one whole job.

        Raises:
            LookupError: when there is none.
        """

        def answer(state: State, now_ms: int) -> job_pb2.Job:
            return job_message(state, state.jobs[job_id], now_ms, whole=True)

        return await self._coordinator.read(answer)
