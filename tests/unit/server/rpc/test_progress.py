"""WorkerService: who may report progress, and what the reports change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from msgspec import Struct

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import job_service_pb2_grpc as jobs_grpc
from rallypoint.v1 import node_pb2
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.v1 import worker_service_pb2_grpc as worker_grpc
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from support.core.served import Agent, Served, served

Code = grpc.StatusCode


class Worker(Struct):
    """A worker of a round with one node."""

    server: Served
    agent: Agent
    token: str

    async def report(self, step: int, token: str | None = "") -> int:
        """Report a step; return the highest one that the coordinator knows."""
        metadata = None if token is None else ((WORKER_TOKEN_KEY, token or self.token),)
        stub: Any = worker_grpc.WorkerServiceStub(self.server.channel)
        request = worker_pb2.ReportProgressRequest(job_id=self.agent.job_id, step=step)
        return int((await stub.ReportProgress(request, metadata=metadata)).step)

    async def round(self) -> Any:
        stub: Any = jobs_grpc.JobServiceStub(self.server.channel)
        return (await stub.GetJob(jobs_pb2.GetJobRequest(job_id=self.agent.job_id))).job.round

    async def step_of_round(self) -> int:
        return int((await self.round()).step)

    async def refusal(self, *args: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.report(*args)
        return caught.value.code()


@asynccontextmanager
async def working(job_id: str = "job") -> AsyncIterator[Worker]:
    async with served() as server:
        agent = server.agent(job_id, 1)
        await agent.hello()
        order = (await agent.read()).welcome.desired.run
        yield Worker(server, agent, order.worker_token)


async def test_highest_step_counts() -> None:
    """Reports may come late, or twice."""
    async with working() as worker:
        steps = [await worker.report(step) for step in (0, 3, 9, 9, 4)]

        assert [0, 3, 9, 9, 9] == steps
        assert 9 == await worker.step_of_round()


async def test_only_workers_of_the_round_report() -> None:
    """A stranger is refused, and so is a worker whose round is over."""
    async with working() as worker:
        assert Code.UNAUTHENTICATED is await worker.refusal(3, None)
        assert Code.UNAUTHENTICATED is await worker.refusal(3, "1.1.am9i.00")
        ended = node_pb2.Worker(local_rank=0, pid=7, exit=node_pb2.WorkerExit(exit_code=3))
        await worker.agent.report(exited=agent_pb2.Exited(round=1, workers=[ended]))
        while not (await worker.agent.read()).HasField("desired"):
            pass

        assert Code.ABORTED is await worker.refusal(3)
        assert 0 == await worker.step_of_round()


async def test_watchers_see_steps() -> None:
    """A reader learns how far training has come."""
    async with working() as worker:
        stub: Any = jobs_grpc.JobServiceStub(worker.server.channel)
        watch = stub.WatchJob(jobs_pb2.WatchJobRequest(job_id="job"))
        await watch.read()
        await worker.report(5)
        answer = await watch.read()

        assert 5 == answer.job.round.step


async def test_milestones_are_in_the_timeline() -> None:
    """A reader sees when the last worker reached them; those of a newer agent are ignored."""
    async with working() as worker:
        reached = [
            agent_pb2.MilestoneReached(milestone=one, age=Duration(seconds=3_600))
            for one in (agent_pb2.MILESTONE_IMPORTED, agent_pb2.Milestone.ValueType(77))
        ]
        await worker.agent.report(reached=agent_pb2.Reached(round=1, milestones=reached))
        await worker.report(1)
        found = (await worker.round()).timeline

        assert {"sealed", "imported", "first_step"} == {one.name for one, _ in found.ListFields()}
        assert found.sealed == found.imported
