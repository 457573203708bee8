"""Readers of jobs: what they share, what they may cost, and what one bad job hides from them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from rallypoint.server.access.usage import stalls
from rallypoint.server.api.jobs import lists, picture, watchers
from rallypoint.server.api.jobs import service as job_service
from rallypoint.server.api.jobs.job import summary_message
from rallypoint.server.api.jobs.watchers import FULL, Watchers
from rallypoint.server.contract import limits
from rallypoint.server.contract.calls import CallRefused, LimitExceeded
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.core.sessions import admission
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.v1 import node_service_pb2 as node_service
from rallypoint.v1 import node_service_pb2_grpc as node_grpc
from support.core.served import LIMIT_S, Served, served

COUNT = 20


@asynccontextmanager
async def watching(
    server: Served, job_id: str, count: int, view: job_pb2.JobView.ValueType = FULL
) -> AsyncIterator[list[Any]]:
    """Watch a job with so many streams."""
    stub = service_grpc.JobServiceStub(server.channel)
    async with AsyncExitStack() as stack, asyncio.timeout(LIMIT_S):
        request = service_pb2.WatchJobRequest(job_id=job_id, view=view)
        calls = [stub.WatchJob(request) for _ in range(count)]
        for call in calls:
            stack.callback(call.cancel)
        yield calls


async def read_all(calls: list[Any]) -> list[bytes]:
    """Read one answer from each; return them encoded."""
    return [answer.SerializeToString() for answer in await asyncio.gather(*map(_read, calls))]


async def _read(call: Any) -> Any:
    return await call.read()


async def cordon(server: Served, job_id: str, node_name: str) -> None:
    """Change a job once."""
    request = node_service.CordonNodeRequest(job_id=job_id, node_name=node_name, reason="test")
    await node_grpc.NodeServiceStub(server.channel).CordonNode(request)


def count_renderings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of the jobs that are rendered, as it happens."""
    rendered: list[str] = []

    def take_picture(state: Any, job: Any, *rest: Any) -> Any:
        rendered.append(job.job_id)
        return picture.take_picture(state, job, *rest)

    monkeypatch.setattr(job_service, "take_picture", take_picture)
    return rendered


async def test_watchers_share_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each version, so all get the same bytes; another job's change renders nothing."""
    rendered = count_renderings(monkeypatch)
    async with served() as server:
        await server.join("job", 1)
        await server.join("other", 2)
        async with watching(server, "job", COUNT) as calls:
            first = await read_all(calls)
            await cordon(server, "other", "n2")
            await cordon(server, "job", "n1")
            second = await read_all(calls)

    assert ["job", "job"] == rendered
    assert (1, 1) == (len(set(first)), len(set(second)))
    assert first[0] != second[0]


async def test_each_view_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watchers of the same view share it; the watchers of other views do not disturb them."""
    rendered = count_renderings(monkeypatch)
    async with served() as server:
        await server.join("job", 1)
        async with (
            watching(server, "job", COUNT) as whole_calls,
            watching(server, "job", COUNT, job_pb2.JOB_VIEW_BASIC) as basic_calls,
            watching(server, "job", COUNT, job_pb2.JOB_VIEW_SUMMARY) as brief_calls,
        ):
            kinds = [await read_all(calls) for calls in (whole_calls, basic_calls, brief_calls)]
            await cordon(server, "job", "n1")
            after = [await read_all(calls) for calls in (whole_calls, basic_calls, brief_calls)]

    assert ["job"] * 4 == rendered  # two views, before and after
    assert [1] * 6 == [len(set(answers)) for answers in (*kinds, *after)]
    assert len(kinds[0][0]) > len(kinds[1][0]) > len(kinds[2][0])


async def test_new_watcher_sees_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first answer waits for no interval and shows what was changed before."""
    monkeypatch.setattr(watchers, "INTERVAL_S", LIMIT_S * 10)
    async with served() as server:
        await server.join("job", 1)
        async with watching(server, "job", 1) as calls:
            await read_all(calls)
            await cordon(server, "job", "n1")
            async with watching(server, "job", 1) as others:
                answer = await others[0].read()

    assert [True] == [node.health.cordoned for node in answer.job.nodes]


class DeafContext:
    """A call whose peer reads nothing."""

    def peer(self) -> str:
        return "ipv4:10.0.0.1:4711"

    async def write(self, answer: bytes) -> None:
        await asyncio.Event().wait()


async def test_watcher_that_does_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it no longer counts as a watcher; one that waits for a change is not ended."""
    services: list[Any] = []
    genuine = job_service.JobService.__init__

    def note(self: Any, *args: Any) -> None:
        services.append(self)
        genuine(self, *args)

    monkeypatch.setattr(job_service.JobService, "__init__", note)
    async with served() as server:
        await server.join("job", 1)
        async with watching(server, "job", 1) as calls:
            await read_all(calls)
            deaf: Any = DeafContext()
            with monkeypatch.context() as hasty, pytest.raises(CallRefused) as caught:
                hasty.setattr(stalls, "STALL_S_MAX", 0.02)
                await services[0].WatchJob(service_pb2.WatchJobRequest(job_id="job"), deaf)
            await cordon(server, "job", "n1")
            await read_all(calls)

            assert grpc.StatusCode.DEADLINE_EXCEEDED.value[0] == caught.value.status.code
            (watched,) = services[0]._watchers._watched["job"].values()
            assert 1 == watched.watchers


@pytest.mark.parametrize("limit", ["WATCHERS_PER_JOB_MAX", "WATCHERS_PER_HOST_MAX"])
def test_limits_of_watchers(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """One too many is refused; one that leaves makes room; the limits of others are separate."""
    monkeypatch.setattr(limits, limit, 2)
    rooms = Watchers()
    job_id = JobId("job")
    other = (JobId("other"), "host") if limit == "WATCHERS_PER_JOB_MAX" else (job_id, "elsewhere")
    with rooms.of_job(job_id, "host") as first:
        with rooms.of_job(job_id, "host"), rooms.of_job(*other):
            with pytest.raises(LimitExceeded), rooms.of_job(job_id, "host"):
                pass
        with rooms.of_job(job_id, "host") as again:
            assert again is first


async def test_watch_of_a_forgotten_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without nodes makes room for another one; its watchers do not wait for ever."""
    monkeypatch.setattr(admission, "JOBS_MAX", 1)
    async with served(Timing(window_ms=0, reconnect_grace_ms=1)) as server:
        agent = server.agent("alone", 1)
        await agent.hello(spec=job_pb2.JobSpec(min_nodes=2, max_nodes=2))
        await agent.read()
        async with watching(server, "alone", 1) as (call,):
            agent.call.cancel()
            while (await call.read()).job.nodes:
                pass
            await server.join("other", 2)

            assert await call.read() is grpc.aio.EOF
            assert grpc.StatusCode.OK is await call.code()


async def test_job_that_cannot_be_shown_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place in the list has only its id. By itself it is an internal error, not NOT_FOUND."""

    def fail_for_bad(genuine: Any) -> Any:
        def show(state: Any, job: Any, *rest: Any) -> Any:
            if job.job_id == "bad":
                raise KeyError("private text")
            return genuine(state, job, *rest)

        return show

    async with served() as server:
        for number, job_id in enumerate(("a", "bad", "c"), 1):
            await server.join(job_id, number)
        monkeypatch.setattr(job_service, "take_picture", fail_for_bad(picture.take_picture))
        monkeypatch.setattr(lists, "summary_message", fail_for_bad(summary_message))
        stub = service_grpc.JobServiceStub(server.channel)
        with capture_logs() as lines:
            listed = await stub.ListJobs(service_pb2.ListJobsRequest())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetJob(service_pb2.GetJobRequest(job_id="bad"))

    assert [("a", 1), ("bad", 0), ("c", 1)] == [(job.job_id, job.run) for job in listed.jobs]
    assert grpc.StatusCode.INTERNAL is caught.value.code()
    events = [line["event"] for line in lines if line.get("exc_info")]
    assert ["rendering_failed", "call_failed"] == events
