"""A scripted coordinator, and a relay in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from msgspec import Struct, field

from rallypoint.relay.serve import Running, Settings, relaying
from rallypoint.relay.uplink import RELAY
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.channel import client_options
from rallypoint.wire.errors import DETAILS_KEY

LIMIT_S = 10
SESSION = "/rallypoint.v1.AgentService/Session"


class Scripted(Struct, eq=False):
    """A coordinator that notes what arrives, and answers what a test says."""

    metadata: dict[str, Any] = field(default_factory=dict)
    remaining_s: float | None = None
    was_cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    entries: asyncio.Queue[agent_pb2.RelayedRequest] = field(default_factory=asyncio.Queue)
    relays: list[Any] = field(default_factory=list)
    """The streams of relays."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == RELAY:
            return grpc.stream_stream_rpc_method_handler(
                self.relay,
                request_deserializer=agent_pb2.RelayRequest.FromString,
                response_serializer=agent_pb2.RelayResponse.SerializeToString,
            )
        return grpc.stream_stream_rpc_method_handler(self.answer)

    async def relay(self, _: object, context: Any) -> None:
        self.relays.append(context)
        while (request := await context.read()) is not grpc.aio.EOF:
            for entry in request.entries:
                self.entries.put_nowait(entry)
            if not request.entries:
                await context.write(agent_pb2.RelayResponse())

    async def answer(self, _: object, context: Any) -> None:
        """Answer twice what is asked; refuse `no`, and wait for ever after `wait`."""
        self.metadata = dict(context.invocation_metadata())
        self.remaining_s = context.time_remaining()
        asked = await context.read()
        if asked == b"no":
            await context.abort(
                grpc.StatusCode.NOT_FOUND, "no such job", ((DETAILS_KEY, b"\x08\x05"),)
            )
        await context.write(asked)
        if asked == b"wait":
            try:
                await asyncio.sleep(LIMIT_S)
            except asyncio.CancelledError:
                self.was_cancelled.set()
                raise
        await context.write(asked)

    async def next(self) -> agent_pb2.RelayedRequest:
        async with asyncio.timeout(LIMIT_S):
            return await self.entries.get()

    async def tell(self, **entry: Any) -> None:
        """Send one entry to the relay."""
        response = agent_pb2.RelayResponse(entries=[agent_pb2.RelayedResponse(**entry)])
        await self.relays[-1].write(response)


class Site(Struct):
    coordinator: Scripted
    relay: Running
    channel: grpc.aio.Channel


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Scripted, int]]:
    """Serve a scripted coordinator."""
    coordinator, server = Scripted(), grpc.aio.server()
    server.add_generic_rpc_handlers((coordinator,))  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield coordinator, port
    await server.stop(0)


@asynccontextmanager
async def relayed() -> AsyncIterator[Site]:
    """Serve a scripted coordinator, and a relay in front of it."""
    async with scripted() as (coordinator, port):
        settings = Settings("127.0.0.1", 0, f"127.0.0.1:{port}")
        async with (
            relaying(settings) as running,
            grpc.aio.insecure_channel(
                f"127.0.0.1:{running.port}", options=client_options()
            ) as channel,
        ):
            yield Site(coordinator, running, channel)
