"""JobService: answers show only decisions that are in the journal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from rallypoint.server.access.marks import marked_shard
from rallypoint.server.access.usage.peers import host_of
from rallypoint.server.access.usage.stalls import Stalls
from rallypoint.server.api.jobs.answers import Answers
from rallypoint.server.api.jobs.job import summary_message
from rallypoint.server.api.jobs.jobs_view import JobsView
from rallypoint.server.api.jobs.lists import read_jobs
from rallypoint.server.api.jobs.picture import JobPicture, fill, take_picture
from rallypoint.server.api.jobs.requests import (
    CANCEL,
    DELETE,
    RESTART,
    to_create,
    to_job_id,
    to_job_list,
    to_update,
    to_view,
)
from rallypoint.server.api.jobs.rows import list_rounds, list_runs
from rallypoint.server.api.jobs.watchers import Rendering, Watched, Watchers
from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import Context
from rallypoint.server.contract.mappers import to_operation
from rallypoint.server.contract.pace import Pace
from rallypoint.server.contract.pages import fill_page, to_page
from rallypoint.server.contract.waiting import Explain
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import unknown_job
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.clocks import Clocks
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator, InputRefused
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc

PROGRESS_S = 10.0
"""How often a watch of all jobs learns the latest revision although its jobs have not changed. So
after an interruption it need not begin where it began."""


class _UnknownJob(InputRefused):
    """There is no such job."""

    def __init__(self, job_id: JobId, state: State, now_ms: int) -> None:
        """Keep what a watcher of the job learns."""
        super().__init__(unknown_job(job_id))
        self.revision = state.revision_of(job_id)
        self.latest = state.revision
        left_ms = state.window_until_ms - now_ms
        self.unsure_s = left_ms / 1000 if left_ms > 0 else None
        """As in `Rendering`."""


class JobService(service_grpc.JobServiceServicer):
    """Serves people and programs that read jobs and change them."""

    def __init__(
        self, coordinator: Coordinator, watchers: Watchers, explain: Explain, pace: Pace
    ) -> None:
        """Serve the jobs of `coordinator`.

        Args:
            coordinator: decides.
            watchers: learn which jobs change.
            explain: tells what a job waits for.
            pace: shared by all readers.
        """
        self._coordinator = coordinator
        self._pace = pace
        self._watchers = watchers
        self._explain = explain
        self._view = JobsView(coordinator, pace, self._explain)
        self._answers = Answers()
        self._stalls = Stalls()

    async def GetJob(
        self, request: service_pb2.GetJobRequest, context: Context
    ) -> service_pb2.GetJobResponse:
        """Return one job."""
        job_id, view = to_job_id(request), to_view(request)

        async def build(close: Callable[[], None]) -> bytes:
            answer = service_pb2.GetJobResponse()
            await self._show(job_id, view, answer, close)
            return answer.SerializeToString()

        answer = await self._answers.get((job_id, view), build)
        return answer  # type: ignore[return-value]  # the interceptor lets bytes pass

    async def ListJobs(
        self, request: service_pb2.ListJobsRequest, context: Context
    ) -> service_pb2.ListJobsResponse:
        """Return a page of jobs."""
        size, token = to_page(request)
        wanted = to_job_list(request, by_wall=marked_shard(context) is not None)
        return await read_jobs(self._coordinator, self._pace, wanted, size, token, self._explain)

    async def ListRuns(
        self, request: service_pb2.ListRunsRequest, context: Context
    ) -> service_pb2.ListRunsResponse:
        """Return a page of the runs of a job."""
        (size, token), page = to_page(request), service_pb2.ListRunsResponse()
        look = partial(_look, JobId(request.job_id))
        job, clocks, now_ms = await self._coordinator.read(look)
        runs = list_runs(job, token, clocks, now_ms)
        page.next_page_token = await fill_page(self._pace, page.runs, runs, size)
        return page

    async def ListRounds(
        self, request: service_pb2.ListRoundsRequest, context: Context
    ) -> service_pb2.ListRoundsResponse:
        """Return a page of the rounds of a job that have ended."""
        (size, token), page = to_page(request), service_pb2.ListRoundsResponse()
        look = partial(_look, JobId(request.job_id))
        job, clocks, now_ms = await self._coordinator.read(look)
        rounds = list_rounds(job, request.run, token, clocks, now_ms)
        page.next_page_token = await fill_page(self._pace, page.rounds, rounds, size)
        return page

    async def WatchJob(  # type: ignore[override]  # a handler may write instead of yield
        self, request: service_pb2.WatchJobRequest, context: Context
    ) -> None:
        """Send the job at once and after every change."""
        job_id, host = to_job_id(request), host_of(context.peer())
        with self._watchers.of_job(job_id, host, to_view(request)) as watched:
            await self._show_all(watched, request, context)

    async def WatchJobs(  # type: ignore[override]  # a handler may write instead of yield
        self, request: service_pb2.WatchJobsRequest, context: Context
    ) -> None:
        """Send the jobs that have changed, then every change."""
        check(request)
        with self._watchers.of_all(host_of(context.peer())):
            await self._show_jobs(request, context)

    async def CreateJob(
        self, request: service_pb2.CreateJobRequest, context: Context
    ) -> service_pb2.CreateJobResponse:
        """Open a run that waits for its agents."""
        summary = await self._operate(to_create(request))
        return service_pb2.CreateJobResponse(job=summary)

    async def CancelJob(
        self, request: service_pb2.CancelJobRequest, context: Context
    ) -> service_pb2.CancelJobResponse:
        """End the run."""
        summary = await self._operate(to_operation(request, CANCEL))
        return service_pb2.CancelJobResponse(job=summary)

    async def RestartJob(
        self, request: service_pb2.RestartJobRequest, context: Context
    ) -> service_pb2.RestartJobResponse:
        """Restart the workers."""
        summary = await self._operate(to_operation(request, RESTART))
        return service_pb2.RestartJobResponse(job=summary)

    async def UpdateJob(
        self, request: service_pb2.UpdateJobRequest, context: Context
    ) -> service_pb2.UpdateJobResponse:
        """Change the specification."""
        summary = await self._operate(to_update(request))
        return service_pb2.UpdateJobResponse(job=summary)

    async def DeleteJob(
        self, request: service_pb2.DeleteJobRequest, context: Context
    ) -> service_pb2.DeleteJobResponse:
        """Forget a job that has ended."""
        await self._operate(to_operation(request, DELETE))
        return service_pb2.DeleteJobResponse()

    async def _operate(self, operation: inputs.Operation) -> job_pb2.JobSummary | None:
        """Carry out an operation; return the job after it, if there still is one."""

        def show(state: State, now_ms: int) -> job_pb2.JobSummary | None:
            job = state.jobs.get(operation.job_id)
            return None if job is None else summary_message(state, job, now_ms, self._explain)

        return await self._coordinator.ask(operation, show)

    async def _show_all(
        self, watched: Watched, request: service_pb2.WatchJobRequest, context: Context
    ) -> None:
        """Send a watcher every rendering of the job that it has not seen."""
        shown, sent = None, request.after_revision or -1
        async with self._stalls.writing(context) as write:
            while shown is None or request.across_runs or not shown.is_final:
                is_first, run = shown is None, 0 if shown is None else shown.run
                shown = await watched.next(shown, self._render)
                if shown.is_missing and not request.across_runs:
                    if is_first:
                        raise InputRefused(unknown_job(watched.job_id))
                    return
                if run and shown.run > run and not request.across_runs:
                    return  # the run has ended, and another one has begun already
                if is_first and sent > shown.latest:
                    sent = -1  # of a coordinator that was ahead of this one
                if shown.revision > sent and shown.unsure_s is None:
                    await write(shown.answer)
                    sent = shown.revision

    async def _show_jobs(self, request: service_pb2.WatchJobsRequest, context: Context) -> None:
        """Send a watcher of all jobs what has changed, until the call ends."""
        view, prefix, at = self._view, request.job_id_prefix, request.after_revision
        changed = self._watchers.changed
        await view.update(prefix, at)
        known = at or view.revision  # without a revision, the client knows of no deleted job
        sent_s = -math.inf  # the first answer is sent also when it is empty
        async with self._stalls.writing(context) as write:
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


def _look(job_id: JobId, state: State, now_ms: int) -> tuple[Job, Clocks, int]:
    return _find(state, job_id, now_ms), state.clocks, now_ms


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
