"""A relay's stream without gRPC, whose shards a test runs or lets stand still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from rallypoint.server.rpc.connections import Connections
from rallypoint.server.rpc.envelopes import Envelopes
from rallypoint.server.rpc.guards.peers import Peers
from rallypoint.server.rpc.guards.tokens import WorkerTokens
from rallypoint.server.rpc.relays.carrying import Carrying
from rallypoint.server.rpc.relays.seats import Place
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from support.core.shell import Shell
from support.relays.carried import Entry

LIMIT_S = 10


class HandContext:
    """The context of a relay's call: a test reads and writes it."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.written: asyncio.Queue[agent_pb2.RelayResponse] = asyncio.Queue()
        self.may_write = asyncio.Event()
        self.may_write.set()

    def peer(self) -> str:
        return "ipv4:10.0.0.1:4711"

    async def read(self) -> Any:
        return await self.said.get()

    async def write(self, response: agent_pb2.RelayResponse) -> None:
        await self.may_write.wait()
        self.written.put_nowait(response)


class Seated:
    """A relay whose agents' jobs are named for their shards."""

    def __init__(self, shells: dict[str, Shell]) -> None:
        self.shells = shells
        self.context = HandContext()
        self.peers = Peers()
        self.read: list[agent_pb2.RelayedResponse] = []
        tokens = WorkerTokens("c")
        self.places = {
            name: Place(
                Connections(
                    one.coordinator,
                    one.outboxes,
                    one.state,
                    Envelopes(one.outboxes, one.state, tokens),
                    self.peers,
                )
            )
            for name, one in shells.items()
        }
        context: Any = self.context
        self.carrying = Carrying(context, self.peers, lambda first: self.places[first.hello.job_id])

    def send(self, *entries: Entry) -> None:
        self.context.said.put_nowait(agent_pb2.RelayRequest(entries=entries))

    async def wait(self, stream: int, kind: str) -> Any:
        """Return the next entry for an agent of this kind: a field of an envelope, or `end`."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for entry in self.read:
                    found = _find(entry, kind)
                    if entry.stream == stream and found is not None:
                        self.read.remove(entry)
                        return found
                self.read += (await self.context.written.get()).entries


def _find(entry: agent_pb2.RelayedResponse, kind: str) -> Any:
    if kind == "end":
        return entry.end if entry.HasField("end") else None
    message = agent_pb2.SessionResponse.FromString(entry.message)
    return message if message.WhichOneof("message") == kind else None


@asynccontextmanager
async def seated(*names: str) -> AsyncIterator[Seated]:
    """Serve a relay at shards with these names; the test runs them."""
    made = Seated({name: Shell() for name in names})
    made.context.said.put_nowait(agent_pb2.RelayRequest(protocol_version=1))
    async with asyncio.timeout(3 * LIMIT_S), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(made.carrying.run())
        try:
            yield made
        finally:
            made.context.may_write.set()
            made.context.said.put_nowait(grpc.aio.EOF)
        await serving
