"""Calls that ask for one job at once cost as much as one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rallypoint.server.api.jobs import picture, requests
from rallypoint.server.api.jobs import service as job_service
from rallypoint.server.contract import waiting
from rallypoint.server.core.reads.explain import explain
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.v1 import node_service_pb2 as node_service
from rallypoint.v1 import node_service_pb2_grpc as node_grpc
from support.core.served import served

CALLS = 100


def count(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, genuine: Any) -> list[str]:
    """Return the jobs with which a function is called, as it happens."""
    jobs: list[str] = []

    def counted(state: Any, job: Any, *rest: Any) -> Any:
        jobs.append(job.job_id)
        return genuine(state, job, *rest)

    monkeypatch.setattr(module, name, counted)
    return jobs


async def test_calls_at_once_share_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that arrive while one is built get the next one, all of them."""
    rendered = count(monkeypatch, job_service, "take_picture", picture.take_picture)
    arrived: list[object] = []
    genuine_view, genuine_fill = requests.to_view, picture.fill

    def to_view(request: Any) -> Any:
        arrived.append(request)
        return genuine_view(request)

    def fill(picture: picture.JobPicture, **rest: Any) -> Iterator[None]:
        while len(arrived) < CALLS:
            yield
        yield from genuine_fill(picture, **rest)

    monkeypatch.setattr(job_service, "to_view", to_view)
    monkeypatch.setattr(job_service, "fill", fill)
    async with asyncio.timeout(60), served() as server:
        await server.join("job", 1)
        stub = service_grpc.JobServiceStub(server.channel)
        request = service_pb2.GetJobRequest(job_id="job")
        answers = await asyncio.gather(*(stub.GetJob(request) for _ in range(CALLS)))

    assert ["job"] * CALLS == [answer.job.job_id for answer in answers]
    assert ["job"] * 2 == rendered


@pytest.mark.parametrize("view", [job_pb2.JOB_VIEW_FULL, job_pb2.JOB_VIEW_SUMMARY])
async def test_call_sees_what_its_caller_has_done(view: job_pb2.JobView.ValueType) -> None:
    """Also while others ask all the time, whose answers may be older."""
    async with asyncio.timeout(60), served() as server, asyncio.TaskGroup() as tasks:
        await server.join("job", 1)
        stub = service_grpc.JobServiceStub(server.channel)
        nodes = node_grpc.NodeServiceStub(server.channel)
        request = service_pb2.GetJobRequest(job_id="job", view=view)

        async def ask() -> None:
            while True:
                await stub.GetJob(request)

        others = [tasks.create_task(ask()) for _ in range(8)]
        for _ in range(20):
            cordon = node_service.CordonNodeRequest(job_id="job", node_name="n1", reason="test")
            await nodes.CordonNode(cordon)
            first = await stub.GetJob(request)
            await nodes.UncordonNode(node_service.UncordonNodeRequest(job_id="job", node_name="n1"))
            second = await stub.GetJob(request)
            revisions = [max(one.job.revision, one.summary.revision) for one in (first, second)]

            assert revisions[0] < revisions[1]
        for other in others:
            other.cancel()


async def test_call_for_no_job_fails_for_everyone() -> None:
    """A caller that waits for an answer that cannot be built gets the error, too."""
    async with asyncio.timeout(60), served() as server:
        stub = service_grpc.JobServiceStub(server.channel)
        request = service_pb2.GetJobRequest(job_id="unknown")
        calls = [stub.GetJob(request) for _ in range(CALLS)]
        found = await asyncio.gather(*(call.code() for call in calls))

    assert [grpc.StatusCode.NOT_FOUND] * CALLS == found


async def test_readers_share_an_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls and lists reuse what the job waited for a moment ago, until the job changes."""
    explained = count(monkeypatch, waiting, "explain", explain)
    monkeypatch.setattr(waiting, "EXPLAINED_MS", 3_600_000)
    async with asyncio.timeout(60), served() as server:
        await server.join("job", 1)
        stub = service_grpc.JobServiceStub(server.channel)
        explained.clear()
        for _ in range(5):
            await stub.GetJob(service_pb2.GetJobRequest(job_id="job"))
            await stub.ListJobs(service_pb2.ListJobsRequest())
        at_rest = len(explained)
        cordon = node_service.CordonNodeRequest(job_id="job", node_name="n1", reason="test")
        await node_grpc.NodeServiceStub(server.channel).CordonNode(cordon)
        await stub.GetJob(service_pb2.GetJobRequest(job_id="job"))

    assert at_rest <= 1
    assert len(explained) > at_rest
