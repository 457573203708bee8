"""JobService: answers show only decisions that are in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from msgspec import Struct

from rallypoint.base.log import get_logger
from rallypoint.server.coordinator import Coordinator, InputRefused
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.convert.checks import InvalidMessage
from rallypoint.server.rpc.convert.requests import (
    to_cancel,
    to_create,
    to_delete,
    to_job_id,
    to_page,
    to_restart,
    to_update,
    to_view,
)
from rallypoint.server.rpc.errors import (
    limit_status,
    refusal_status,
    stalled_status,
    unknown_job_status,
)
from rallypoint.server.rpc.guards.peers import LimitExceeded, host_of
from rallypoint.server.rpc.outbox import Outboxes
from rallypoint.server.rpc.reading.pace import Pace
from rallypoint.server.rpc.reading.pages import read_jobs
from rallypoint.server.rpc.stalls import Stalls
from rallypoint.server.rpc.status import abort_with, invalid_status
from rallypoint.server.rpc.views.job import summary_message
from rallypoint.server.rpc.views.whole import JobPicture, fill, take_picture
from rallypoint.server.rpc.watchers import Rendering, Watched
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc

_Context = grpc.aio.ServicerContext[Any, Any]
_WatchContext = grpc.aio.ServicerContext[service_pb2.WatchJobRequest, bytes]
"""The interceptor lets answers pass that are encoded already."""

log = get_logger()

STALL_S_MAX = 30.0
"""Longest time that a watcher may take to read an answer. An agent has only a lease, but a person
may suspend a watching program for a moment."""


class _UnknownJob(Exception):
    """There is no such job. A KeyError would also come from a bug in a view."""


class JobService(service_grpc.JobServiceServicer):
    """Serves people and programs that read jobs and change them."""

    def __init__(self, coordinator: Coordinator, outboxes: Outboxes, pace: Pace) -> None:
        """Read from `coordinator`; `outboxes` wakes watchers; all readers share `pace`."""
        self._coordinator = coordinator
        self._pace = pace
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
            shown = await self._show(job_id, to_view(request))
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        except _UnknownJob:
            await abort_with(context, unknown_job_status(request.job_id))
        return service_pb2.GetJobResponse(job=shown.job, summary=shown.summary)

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
        return await read_jobs(self._coordinator, self._pace, size, after)

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
            watched = self._watchers.enter(job_id, host, to_view(request))
        except LimitExceeded as full:
            await abort_with(context, limit_status(full))
        try:
            await self._show_all(watched, context)
        finally:
            self._watchers.leave(watched, host)

    async def CreateJob(
        self, request: service_pb2.CreateJobRequest, context: _Context
    ) -> service_pb2.CreateJobResponse:
        """Open a run that waits for its agents."""
        summary = await self._operate(context, lambda: to_create(request))
        return service_pb2.CreateJobResponse(job=summary)

    async def CancelJob(
        self, request: service_pb2.CancelJobRequest, context: _Context
    ) -> service_pb2.CancelJobResponse:
        """End the run."""
        summary = await self._operate(context, lambda: to_cancel(request))
        return service_pb2.CancelJobResponse(job=summary)

    async def RestartJob(
        self, request: service_pb2.RestartJobRequest, context: _Context
    ) -> service_pb2.RestartJobResponse:
        """Restart the workers."""
        summary = await self._operate(context, lambda: to_restart(request))
        return service_pb2.RestartJobResponse(job=summary)

    async def UpdateJob(
        self, request: service_pb2.UpdateJobRequest, context: _Context
    ) -> service_pb2.UpdateJobResponse:
        """Change the specification."""
        summary = await self._operate(context, lambda: to_update(request))
        return service_pb2.UpdateJobResponse(job=summary)

    async def DeleteJob(
        self, request: service_pb2.DeleteJobRequest, context: _Context
    ) -> service_pb2.DeleteJobResponse:
        """Forget a job that has ended."""
        await self._operate(context, lambda: to_delete(request))
        return service_pb2.DeleteJobResponse()

    async def _operate(
        self, context: _Context, convert: Callable[[], inputs.Operation]
    ) -> job_pb2.JobSummary | None:
        """Carry out an operation; return the job after it, if there still is one."""

        def show(state: State, now_ms: int) -> job_pb2.JobSummary | None:
            job = state.jobs.get(operation.job_id)
            return None if job is None else summary_message(state, job, now_ms)

        try:
            operation = convert()
            return await self._coordinator.ask(operation, show)
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        except InputRefused as refused:
            await abort_with(context, refusal_status(refused.refusal))

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
        version = watched.version
        shown = await self._show(watched.job_id, watched.view)
        answer = service_pb2.WatchJobResponse(job=shown.job, summary=shown.summary)
        return Rendering(
            version=version,
            answer=answer.SerializeToString(),
            nodes=0 if shown.job is None else len(shown.job.nodes),
            is_final=shown.is_final,
        )

    async def _show(self, job_id: JobId, view: job_pb2.JobView.ValueType) -> _Shown:
        """Return a job as it is shown with a view.

        Raises:
            _UnknownJob: when there is none.
        """
        if view == job_pb2.JOB_VIEW_SUMMARY:
            return await self._coordinator.read(partial(_summarize, job_id))
        picture = await self._coordinator.read(partial(_picture, job_id))
        await self._pace.drive(fill(picture, with_nodes=view == job_pb2.JOB_VIEW_FULL))
        is_final = picture.job.phase is Phase.CLOSED and not picture.nodes
        return _Shown(picture.message, None, is_final)


class _Shown(Struct):
    """A job in one of its two forms."""

    job: job_pb2.Job | None
    summary: job_pb2.JobSummary | None
    is_final: bool
    """The run is over and every node knows."""


def _summarize(job_id: JobId, state: State, now_ms: int) -> _Shown:
    summary = summary_message(state, _find(state, job_id), now_ms)
    is_final = summary.phase == job_pb2.JOB_PHASE_CLOSED and not summary.node_count
    return _Shown(None, summary, is_final)


def _picture(job_id: JobId, state: State, now_ms: int) -> JobPicture:
    return take_picture(state, _find(state, job_id), now_ms)


def _find(state: State, job_id: JobId) -> Job:
    job = state.jobs.get(job_id)
    if job is None:
        raise _UnknownJob
    return job
