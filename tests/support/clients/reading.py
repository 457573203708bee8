"""Jobs of a served coordinator that run, end and are deleted, and readers of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.v1 import node_service_pb2 as node_service
from rallypoint.v1 import node_service_pb2_grpc as node_grpc
from support.core.served import LIMIT_S, Agent, Served


class Reader:
    """Calls the services of a coordinator as readers and operators do."""

    def __init__(self, server: Served) -> None:
        self.jobs: Any = service_grpc.JobServiceStub(server.channel)
        self.nodes: Any = node_grpc.NodeServiceStub(server.channel)

    async def get(self, job_id: str) -> Any:
        """Return a job."""
        return (await self.jobs.GetJob(service_pb2.GetJobRequest(job_id=job_id))).job

    async def list(self, **fields: Any) -> Any:
        """Return a page of jobs."""
        return await self.jobs.ListJobs(service_pb2.ListJobsRequest(**fields))

    async def change(self, job_id: str) -> None:
        """Change a job once, so that its readers see it."""
        request = node_service.CordonNodeRequest(job_id=job_id, node_name="n1", reason="test")
        await self.nodes.CordonNode(request)

    async def delete(self, job_id: str) -> None:
        """Delete a job that has ended."""
        await self.jobs.DeleteJob(service_pb2.DeleteJobRequest(job_id=job_id))

    @asynccontextmanager
    async def watch(self, job_id: str, **fields: Any) -> AsyncIterator[Watch]:
        """Watch a job while the context is open."""
        request = service_pb2.WatchJobRequest(job_id=job_id, **fields)
        async with _reading(self.jobs.WatchJob(request)) as watch:
            yield watch

    @asynccontextmanager
    async def watch_all(self, after: int = 0, prefix: str = "") -> AsyncIterator[Watch]:
        """Watch all jobs while the context is open."""
        request = service_pb2.WatchJobsRequest(after_revision=after, job_id_prefix=prefix)
        async with _reading(self.jobs.WatchJobs(request)) as watch:
            yield watch


class Watch:
    """A stream of answers."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def next(self) -> Any:
        """Return the next answer; grpc.aio.EOF at the end."""
        async with asyncio.timeout(LIMIT_S):
            return await self.call.read()

    async def ending(self) -> grpc.aio.AioRpcError:
        """Return how the stream was refused."""
        try:
            answer = await self.next()
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(answer)


@asynccontextmanager
async def _reading(call: Any) -> AsyncIterator[Watch]:
    try:
        yield Watch(call)
    finally:
        call.cancel()


async def run_once(server: Served, job_id: str, number: int) -> None:
    """Let a run of one node begin, succeed and end everywhere."""
    agent = await server.join(job_id, number)
    await succeed(agent)


async def succeed(agent: Agent) -> None:
    """Let the only node of a run succeed and leave."""
    await agent.report(started=agent_pb2.Started(round=agent.round, pids=[4_000]))
    await agent.report(succeeded=agent_pb2.Succeeded(round=agent.round))
    await agent.report(goodbye=agent_pb2.Goodbye(reason=agent_pb2.GOODBYE_REASON_FINISHED))
    await agent.ending()
