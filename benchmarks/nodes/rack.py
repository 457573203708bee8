"""Racks: simulated agents that share one stream, as a relay would carry them.

The racks are in this process: in a cluster each relay has its own processor.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from harness.swarm import Gathering, SimulatedAgent, open_channel
from rallypoint.v1 import agent_service_pb2 as agent_pb2

METHOD = "/rallypoint.v1.AgentService/Relay"
ENTRIES_MAX = 1_024
BEAT_S = 1.0


@dataclass(slots=True)
class Rack:
    """A relay's side of the protocol, without the relay: agents of this process share a stream."""

    agents: list[RackedAgent] = field(default_factory=list)
    waiting: deque[agent_pb2.RelayedRequest] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def live(self, channel: grpc.aio.Channel) -> None:
        """Carry the agents until cancelled."""
        call: Any = channel.stream_stream(
            METHOD,
            request_serializer=agent_pb2.RelayRequest.SerializeToString,
            response_deserializer=agent_pb2.RelayResponse.FromString,
        )()
        await call.write(agent_pb2.RelayRequest(protocol_version=1))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write(call))
            for agent in self.agents:
                tasks.create_task(agent.take_part())
            while (response := await call.read()) is not grpc.aio.EOF:
                for entry in response.entries:
                    if not entry.HasField("message"):
                        raise RuntimeError(f"an agent was refused: {entry.end.text}")
                    await self.agents[entry.stream - 1].receive(entry.message)
            raise RuntimeError(f"the coordinator has ended the stream: {await call.details()}")

    async def _write(self, call: Any) -> None:
        while True:
            try:
                async with asyncio.timeout(BEAT_S):
                    await self.wake.wait()
            except TimeoutError:
                await call.write(agent_pb2.RelayRequest())
            self.wake.clear()
            while self.waiting:
                entries = [
                    self.waiting.popleft() for _ in range(min(len(self.waiting), ENTRIES_MAX))
                ]
                await call.write(agent_pb2.RelayRequest(entries=entries))


@dataclass(slots=True)
class RackedAgent(SimulatedAgent):
    """An agent that shares the stream of its rack."""

    rack: Rack = field(default_factory=Rack)
    stream: int = 0
    has_opened: bool = False

    async def take_part(self) -> None:
        """Say Hello, then send heartbeats until cancelled."""
        await self.say(self.hello(), numbered=False)
        await self._beat()

    async def receive(self, message: bytes) -> None:
        """Do what the coordinator wants."""
        response = agent_pb2.SessionResponse.FromString(message)
        self.epoch = response.epoch
        await self._take(response)

    async def say(self, message: agent_pb2.SessionRequest, *, numbered: bool = True) -> None:
        """Put a message into the next one of the rack."""
        if numbered:
            self.sequence += 1
            message.sequence = self.sequence
        message.session_id, message.connection, message.epoch = self.session_id, 1, self.epoch
        entry = agent_pb2.RelayedRequest(stream=self.stream)
        packed = message.SerializeToString()
        if self.has_opened:
            entry.message = packed
        else:
            self.has_opened = True
            entry.opening.hello = packed
        self.rack.waiting.append(entry)
        self.rack.wake.set()


class Racks:
    """All agents of one job, each on the stream of its rack."""

    def __init__(self, target: str, nodes: int, per_rack: int, tasks: asyncio.TaskGroup) -> None:
        """Make the agents, not connected yet."""
        self._gathering, self._tasks = Gathering(nodes), tasks
        self._target = target
        self._racks: list[Rack] = []
        for number in range(nodes):
            if number % per_rack == 0:
                self._racks.append(Rack())
            rack = self._racks[-1]
            rack.agents.append(RackedAgent(number, nodes, self._gathering.one, rack=rack))
            rack.agents[-1].stream = len(rack.agents)
        self.lives: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Connect all agents."""
        for rack in self._racks:
            life = rack.live(open_channel(self._target))
            self.lives.append(self._tasks.create_task(life))

    async def fail(self, number: int) -> None:
        """Let an agent of another rack report a failed worker for each `number` in a row."""
        await self._racks[number % len(self._racks)].agents[0].fail()

    async def gather(self) -> None:
        """Return when every agent has received the next Run."""
        await self._gathering.all()


@asynccontextmanager
async def racked_agents(target: str, nodes: int, per_rack: int) -> AsyncIterator[Racks]:
    """Make `nodes` agents, not connected yet, for a server; end them afterwards.

    Args:
        target: of the coordinator.
        nodes: how many.
        per_rack: how many of them share a stream.
    """
    async with asyncio.TaskGroup() as tasks:
        racks = Racks(target, nodes, per_rack, tasks)
        try:
            yield racks
        finally:
            for life in racks.lives:
                life.cancel()
