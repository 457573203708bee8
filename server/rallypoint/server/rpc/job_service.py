"""JobService: answers show only decisions that are in the journal."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
from msgspec import Struct

from rallypoint.base.log import get_logger
from rallypoint.server.coordinator import Coordinator, InputRefused
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.convert.bounds import check
from rallypoint.server.rpc.convert.checks import InvalidMessage
from rallypoint.server.rpc.convert.requests import (
    to_cancel,
    to_create,
    to_delete,
    to_job_id,
    to_job_list,
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
from rallypoint.server.rpc.guards.lines import may_log
from rallypoint.server.rpc.guards.peers import LimitExceeded, host_of
from rallypoint.server.rpc.outbox import Outboxes
from rallypoint.server.rpc.reading.answers import Answers
from rallypoint.server.rpc.reading.jobs import read_jobs
from rallypoint.server.rpc.reading.jobs_view import Compacted, JobsView
from rallypoint.server.rpc.reading.pace import Pace
from rallypoint.server.rpc.reading.past import read_token, show_rounds, show_runs
from rallypoint.server.rpc.routing.marks import marked_shard
from rallypoint.server.rpc.stalls import Stalls
from rallypoint.server.rpc.status import abort_with, invalid_status
from rallypoint.server.rpc.views.explanations import Explain
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


PROGRESS_S = 10.0
"""How often a watch of all jobs learns the latest revision although its jobs have not changed. So
after an interruption it need not begin where it began."""


class _UnknownJob(Exception):
    """There is no such job. A KeyError would also come from a bug in a view."""

    def __init__(self, job_id: JobId, state: State, now_ms: int) -> None:
        """Keep what a watcher of the job learns."""
        super().__init__(job_id)
        self.revision = state.revision_of(job_id)
        self.latest = state.revision
        left_ms = state.window_until_ms - now_ms
        self.unsure_s = left_ms / 1000 if left_ms > 0 else None
        """As in `Rendering`."""


class JobService(service_grpc.JobServiceServicer):
    """Serves people and programs that read jobs and change them."""

    def __init__(self, coordinator: Coordinator, outboxes: Outboxes, pace: Pace) -> None:
        """Read from `coordinator`; `outboxes` wakes watchers; all readers share `pace`."""
        self._coordinator = coordinator
        self._pace = pace
        self._watchers = outboxes.watchers
        self._explain = outboxes.explanations.explain
        self._view = JobsView(coordinator, pace, self._explain)
        self._answers = Answers()
        self._stalls = Stalls()

    async def GetJob(
        self,
        request: service_pb2.GetJobRequest,
        context: grpc.aio.ServicerContext[service_pb2.GetJobRequest, service_pb2.GetJobResponse],
    ) -> service_pb2.GetJobResponse:
        """Return one job."""
        try:
            job_id, view = to_job_id(request), to_view(request)

            async def build(close: Callable[[], None]) -> bytes:
                answer = service_pb2.GetJobResponse()
                await self._show(job_id, view, answer, close)
                return answer.SerializeToString()

            answer = await self._answers.get((job_id, view), build)
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        except _UnknownJob:
            await abort_with(context, unknown_job_status(request.job_id))
        return answer  # type: ignore[return-value]  # the interceptor lets bytes pass

    async def ListJobs(
        self,
        request: service_pb2.ListJobsRequest,
        context: grpc.aio.ServicerContext[
            service_pb2.ListJobsRequest, service_pb2.ListJobsResponse
        ],
    ) -> service_pb2.ListJobsResponse:
        """Return a page of jobs."""
        try:
            size, token = to_page(request)
            wanted = to_job_list(request, by_wall=marked_shard(context) is not None)
            return await read_jobs(
                self._coordinator, self._pace, wanted, size, token, self._explain
            )
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))

    async def ListRuns(
        self, request: service_pb2.ListRunsRequest, context: _Context
    ) -> service_pb2.ListRunsResponse:
        """Return a page of the runs of a job."""
        try:
            size, token = to_page(request)
            below = read_token(token)
            job, now_ms = await self._coordinator.read(partial(_look, JobId(request.job_id)))
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        except _UnknownJob:
            await abort_with(context, unknown_job_status(request.job_id))
        return await show_runs(job, self._pace, size, below, now_ms)

    async def ListRounds(
        self, request: service_pb2.ListRoundsRequest, context: _Context
    ) -> service_pb2.ListRoundsResponse:
        """Return a page of the rounds of a job that have ended."""
        try:
            size, token = to_page(request)
            below = read_token(token)
            job, now_ms = await self._coordinator.read(partial(_look, JobId(request.job_id)))
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        except _UnknownJob:
            await abort_with(context, unknown_job_status(request.job_id))
        return await show_rounds(job, self._pace, request.run, size, below, now_ms)

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
            await self._show_all(watched, request, context)
        finally:
            self._watchers.leave(watched, host)

    async def WatchJobs(  # type: ignore[override]  # a handler may write instead of yield
        self, request: service_pb2.WatchJobsRequest, context: _WatchContext
    ) -> None:
        """Send the jobs that have changed, then every change."""
        try:
            check(request)
            with self._watchers.of_all(host_of(context.peer())):
                await self._show_jobs(request, context)
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        except LimitExceeded as full:
            await abort_with(context, limit_status(full))
        except Compacted as compacted:
            facts = (("oldest_revision", compacted.oldest), ("epoch", compacted.epoch))
            refusal = Refusal(RefusalKind.REVISION_COMPACTED, facts)
            await abort_with(context, refusal_status(refusal))

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
            return None if job is None else summary_message(state, job, now_ms, self._explain)

        try:
            operation = convert()
            return await self._coordinator.ask(operation, show)
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        except InputRefused as refused:
            await abort_with(context, refusal_status(refused.refusal))

    async def _show_all(
        self, watched: Watched, request: service_pb2.WatchJobRequest, context: _WatchContext
    ) -> None:
        """Send a watcher every rendering of the job that it has not seen."""
        shown, sent = None, request.after_revision or -1
        async with self._writing(context) as write:
            while shown is None or request.across_runs or not shown.is_final:
                is_first, run = shown is None, 0 if shown is None else shown.run
                shown = await watched.next(shown, self._render)
                if shown.is_missing and not request.across_runs:
                    if is_first:
                        await abort_with(context, unknown_job_status(watched.job_id))
                    return
                if run and shown.run > run and not request.across_runs:
                    return  # the run has ended, and another one has begun already
                if is_first and sent > shown.latest:
                    sent = -1  # of a coordinator that was ahead of this one
                if shown.revision > sent and shown.unsure_s is None:
                    await write(shown.answer)
                    sent = shown.revision

    async def _show_jobs(
        self, request: service_pb2.WatchJobsRequest, context: _WatchContext
    ) -> None:
        """Send a watcher of all jobs what has changed, until the call ends."""
        view, prefix, at = self._view, request.job_id_prefix, request.after_revision
        changed = self._watchers.changed
        await view.update(prefix, at)
        known = at or view.revision  # without a revision, the client knows of no deleted job
        sent_s = -math.inf  # the first answer is sent also when it is empty
        async with self._writing(context) as write:
            while True:
                view.check(max(at, known))
                news, now_s = view.read(prefix, at, known), time.monotonic()
                at = news.revision
                if not news.is_empty or now_s - sent_s >= PROGRESS_S:
                    await write(news.answer)
                    sent_s = now_s
                if at == view.revision:
                    await changed.wait()
                    changed = self._watchers.changed
                    await view.update()

    @asynccontextmanager
    async def _writing(
        self, context: _WatchContext
    ) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
        """Return how answers are written; the call ends if one takes too long."""
        try:
            async with asyncio.timeout(None) as scope:

                async def write(answer: bytes) -> None:
                    self._stalls.begin(scope, STALL_S_MAX)
                    try:
                        await context.write(answer)
                    finally:
                        self._stalls.end(scope)

                yield write
        except TimeoutError:
            if may_log():
                log.warning("watcher_stalled", limit_s=STALL_S_MAX)
            await abort_with(context, stalled_status(STALL_S_MAX))

    async def _render(self, watched: Watched) -> Rendering:
        """Render a job for its watchers, or that there is none."""
        version, answer = watched.version, service_pb2.WatchJobResponse()
        try:
            shown = await self._show(watched.job_id, watched.view, answer)
        except _UnknownJob as unknown:
            return _render_missing(unknown, version)
        answer.revision = shown.revision
        return Rendering(
            version=version,
            revision=shown.revision,
            latest=shown.latest,
            answer=answer.SerializeToString(),
            nodes=len(answer.job.nodes),
            is_final=shown.is_final,
            run=max(answer.job.run, answer.summary.run),
        )

    async def _show(
        self,
        job_id: JobId,
        view: job_pb2.JobView.ValueType,
        answer: service_pb2.GetJobResponse | service_pb2.WatchJobResponse,
        close: Callable[[], None] = lambda: None,
    ) -> _Shown:
        """Fill an answer with a job as a view shows it; call `close` at the moment that it shows.

        A large job is built inside the answer: to copy it would hold up agents for 50 ms.

        Raises:
            _UnknownJob: when there is none.
        """
        explain = self._explain
        if view == job_pb2.JOB_VIEW_SUMMARY:
            summarize = partial(_summarize, job_id, explain, answer, close)
            return await self._coordinator.read(summarize)
        picture = await self._coordinator.read(partial(_picture, job_id, explain, close))
        answer.job.CopyFrom(picture.message)  # which is small yet
        picture.message = answer.job
        await self._pace.drive(fill(picture, with_nodes=view == job_pb2.JOB_VIEW_FULL))
        is_final = picture.job.phase is Phase.CLOSED and not picture.nodes
        return _Shown(is_final, answer.job.revision, picture.latest)


class _Shown(Struct):
    """What an answer shows."""

    is_final: bool
    """The run is over and every node knows."""
    revision: int
    latest: int
    """Revision of the coordinator then."""


def _summarize(
    job_id: JobId,
    explain: Explain,
    answer: service_pb2.GetJobResponse | service_pb2.WatchJobResponse,
    close: Callable[[], None],
    state: State,
    now_ms: int,
) -> _Shown:
    close()
    summary = summary_message(state, _find(state, job_id, now_ms), now_ms, explain)
    answer.summary.CopyFrom(summary)
    is_final = summary.phase == job_pb2.JOB_PHASE_CLOSED and not summary.node_count
    return _Shown(is_final, summary.revision, state.revision)


def _picture(
    job_id: JobId, explain: Explain, close: Callable[[], None], state: State, now_ms: int
) -> JobPicture:
    close()
    return take_picture(state, _find(state, job_id, now_ms), now_ms, explain)


def _look(job_id: JobId, state: State, now_ms: int) -> tuple[Job, int]:
    return _find(state, job_id, now_ms), now_ms


def _render_missing(unknown: _UnknownJob, version: int) -> Rendering:
    answer = service_pb2.WatchJobResponse(missing=True, revision=unknown.revision)
    return Rendering(
        version=version,
        revision=unknown.revision,
        latest=unknown.latest,
        answer=answer.SerializeToString(),
        nodes=0,
        is_final=False,
        is_missing=True,
        unsure_s=unknown.unsure_s,
    )


def _find(state: State, job_id: JobId, now_ms: int) -> Job:
    job = state.jobs.get(job_id)
    if job is None:
        raise _UnknownJob(job_id, state, now_ms)
    return job
