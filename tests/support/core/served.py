"""A coordinator behind its real gRPC server, and agents that speak the protocol by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import grpc
import grpc.aio
from msgspec import Struct, field

from rallypoint.server.access.usage import rests
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.journal.interface import Journal
from rallypoint.server.serve import Running, Settings, serving
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import job_pb2
from rallypoint.wire.channel import client_options

LIMIT_S = 60
SPEC = job_pb2.JobSpec(min_nodes=1, max_nodes=1)
AT_ONCE = Timing(window_ms=0, lease_ms=60_000)
"""Agents of tests send no heartbeats, and a busy machine keeps them waiting."""


def hello_of(job_id: str, number: int) -> agent_pb2.Hello:
    """Return the Hello of a clean node."""
    return agent_pb2.Hello(
        protocol_version=1,
        job_id=job_id,
        spec=SPEC,
        node_name=f"n{number}",
        address="10.0.0.1",
        local_world_size=1,
        ready=agent_pb2.Ready(master_port=20_000),
    )


class Served(Struct):
    """A served coordinator, and a channel to it."""

    running: Running
    channel: grpc.aio.Channel
    agents: list[Agent] = field(default_factory=list)
    """All agents: a call that is no longer referred to is cancelled."""

    async def join(self, job_id: str, number: int) -> Agent:
        """Return an agent whose round it was ordered to run."""
        agent = self.agent(job_id, number)
        await agent.hello()
        welcome = await agent.read()
        assert welcome.welcome.desired.HasField("run")
        agent.round = welcome.welcome.desired.run.header.number
        return agent

    def agent(self, job_id: str, number: int) -> Agent:
        call = agent_grpc.AgentServiceStub(self.channel).Session()
        agent = Agent(call, job_id, f"{number:032x}")
        self.agents.append(agent)
        return agent


class Agent(Struct):
    """One connection of one agent."""

    call: Any
    job_id: str
    session_id: str
    connection: int = 1
    sequence: int = 0
    beats: int = 0
    epoch: int = 0
    """The coordinator's, as of the last message that was read."""
    token: str = ""
    """Of the last Welcome that was read."""
    round: int = 0
    """The round that it was ordered to run when it joined."""

    def again(self, server: Served, *, token: str | None = None) -> Agent:
        """Return its next connection; `token` replaces its own."""
        agent = server.agent(self.job_id, int(self.session_id, 16))
        agent.connection, agent.epoch = self.connection + 1, self.epoch
        agent.token = self.token if token is None else token
        return agent

    async def hello(self, **fields: Any) -> None:
        """Send a Hello of a clean node; `fields` replace its own."""
        hello = hello_of(self.job_id, int(self.session_id, 16))
        hello.resume_token = self.token
        hello.MergeFrom(agent_pb2.Hello(**fields))
        await self.write(agent_pb2.SessionRequest(hello=hello))

    async def report(self, **message: Any) -> None:
        """Send the next numbered report."""
        self.sequence += 1
        await self.write(agent_pb2.SessionRequest(sequence=self.sequence, **message))

    async def write(self, request: agent_pb2.SessionRequest) -> None:
        request.session_id, request.connection = self.session_id, self.connection
        request.epoch = self.epoch
        await self.call.write(request)

    async def read(self) -> agent_pb2.SessionResponse:
        """Return the next message.

        Raises:
            EOFError: when the stream has ended.
        """
        async with asyncio.timeout(LIMIT_S):
            message = await self.call.read()
        if message is grpc.aio.EOF:
            raise EOFError
        assert isinstance(message, agent_pb2.SessionResponse)
        self.epoch = max(self.epoch, message.epoch)
        self.token = message.welcome.resume_token or self.token
        return message

    async def check_alive(self) -> None:
        """Check that the coordinator still acknowledges heartbeats."""
        self.beats += 1
        beat = agent_pb2.Heartbeat(number=self.beats)
        await self.write(agent_pb2.SessionRequest(heartbeat=beat))
        while (await self.read()).acknowledgement.heartbeat < self.beats:
            pass

    async def ending(self) -> tuple[grpc.StatusCode, str]:
        """Read until the stream ends; return its status."""
        async with asyncio.timeout(LIMIT_S):
            try:
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError:
                pass
            return await self.call.code(), await self.call.details()


@asynccontextmanager
async def served(
    timing: Timing = AT_ONCE, journal: Journal | None = None, *, may_rest: bool = False
) -> AsyncIterator[Served]:
    """Serve a coordinator while the context is open.

    Args:
        timing: Its times.
        journal: None: one in memory.
        may_rest: Whether calls that are refused again and again wait for their answers.
    """
    with nullcontext() if may_rest else patch.object(rests, "sleep", _at_once):
        async with _serving(timing, journal) as made:
            yield made


async def _at_once(wait_s: float) -> None:
    """Wait for nothing."""


@asynccontextmanager
async def _serving(timing: Timing, journal: Journal | None) -> AsyncIterator[Served]:
    async with (
        serving(Settings("127.0.0.1", 0, timing, journal=journal)) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}", options=client_options()) as channel,
    ):
        yield Served(running, channel)
