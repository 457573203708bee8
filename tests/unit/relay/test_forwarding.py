"""A relay between clients and a scripted coordinator: calls pass unchanged, agents as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from msgspec import Struct, field

from rallypoint.relay.serve import Running, Settings, relaying
from rallypoint.relay.uplink import RELAY
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.channel import client_options
from rallypoint.wire.errors import DETAILS_KEY

LIMIT_S = 10
SESSION = "/rallypoint.v1.AgentService/Session"
NO_SUCH = "/rallypoint.v1.JobService/Answer"


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


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with scripted() as (coordinator, port):
        settings = Settings("127.0.0.1", 0, f"127.0.0.1:{port}")
        async with (
            relaying(settings) as running,
            grpc.aio.insecure_channel(
                f"127.0.0.1:{running.port}", options=client_options()
            ) as channel,
        ):
            yield Site(coordinator, running, channel)


async def test_stream_passes(site: Site) -> None:
    """All answers, the metadata, and about the time that is left."""
    metadata = (("authorization", "Bearer t"), ("rallypoint-worker-token", "w"))
    make: Any = site.channel.unary_stream(NO_SUCH)
    call = make(b"hello", timeout=LIMIT_S, metadata=metadata)
    answers = [answer async for answer in call]

    assert [b"hello", b"hello"] == answers
    assert set(metadata) <= set(site.coordinator.metadata.items())
    assert site.coordinator.remaining_s is not None
    assert 0 < site.coordinator.remaining_s < LIMIT_S + 1  # gRPC rounds it up on each way


async def test_refusal_passes(site: Site) -> None:
    """With its status, its text and its details."""
    make: Any = site.channel.unary_unary(NO_SUCH)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await make(b"no", timeout=LIMIT_S)

    assert grpc.StatusCode.NOT_FOUND is refused.value.code()
    assert "no such job" == refused.value.details()
    assert (DETAILS_KEY, b"\x08\x05") in tuple(refused.value.trailing_metadata())


async def test_cancellation_passes(site: Site) -> None:
    """Nothing waits for a client that is gone."""
    make: Any = site.channel.unary_stream(NO_SUCH)
    call = make(b"wait", timeout=LIMIT_S)
    assert b"wait" == await call.read()
    call.cancel()

    async with asyncio.timeout(LIMIT_S):
        await site.coordinator.was_cancelled.wait()


async def test_agents_pass_as_bytes(site: Site) -> None:
    """The relay reads nothing; each agent has a number, and gets what is for that number."""
    calls = []
    for number in (1, 2):
        make: Any = site.channel.stream_stream(SESSION)
        calls.append(make(metadata=(("authorization", f"Bearer {number}"),)))
        await calls[-1].write(b"hello %d" % number)
        entry = await site.coordinator.next()
        assert (number, b"hello %d" % number) == (entry.stream, entry.opening.hello)
        assert f"Bearer {number}" == entry.opening.authorization
        assert not entry.opening.is_certified
    await site.coordinator.tell(stream=2, message=b"for two")
    await calls[1].write(b"thanks")
    said = await site.coordinator.next()
    end = agent_pb2.RelayedEnd(code=5, text="gone", details=b"\x08\x05")
    await site.coordinator.tell(stream=1, end=end)

    async with asyncio.timeout(LIMIT_S):
        assert b"for two" == await calls[1].read()
        assert (2, b"thanks") == (said.stream, said.message)
        assert grpc.StatusCode.NOT_FOUND is await calls[0].code()
        assert (DETAILS_KEY, b"\x08\x05") in tuple(await calls[0].trailing_metadata())
    calls[1].cancel()
    closing = await site.coordinator.next()
    assert (2, True) == (closing.stream, closing.HasField("closing"))


async def test_agents_leave_a_relay_without_a_coordinator() -> None:
    """They hear at once that the coordinator is gone, and others learn that there is none."""
    async with scripted() as (coordinator, port):
        settings = Settings("127.0.0.1", 0, f"127.0.0.1:{port}")
        async with (
            relaying(settings) as running,
            grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
        ):
            make: Any = channel.stream_stream(SESSION)
            call = make()
            await call.write(b"hello")
            await coordinator.next()
            with pytest.raises(grpc.aio.AbortError):
                await coordinator.relays[0].abort(grpc.StatusCode.UNAVAILABLE, "it ends")
            async with asyncio.timeout(LIMIT_S):
                code, text = await call.code(), await call.details()

            assert grpc.StatusCode.UNAVAILABLE is code
            assert "the relay has lost the coordinator: UNAVAILABLE: it ends" == text


async def test_relay_carries_no_relay(site: Site) -> None:
    """It would hide how many agents there are."""
    make: Any = site.channel.stream_stream(RELAY)
    call = make()
    await call.write(b"")

    async with asyncio.timeout(LIMIT_S):
        assert grpc.StatusCode.UNIMPLEMENTED is await call.code()
