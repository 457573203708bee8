"""Calls and connections that do nothing: they are bounded before anyone is asked who they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.server.contract import limits
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import coordinator_service_pb2_grpc as coordinator_grpc
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.wire.channel import client_options, server_options
from rallypoint.wire.errors import unpack_details
from support.core.served import LIMIT_S, Served, served

OTHER_HOST = "127.0.0.2"
MANY = 1_000
UNARY = "/rallypoint.v1.CoordinatorService/GetCoordinator"
WATCH = "/rallypoint.v1.EventService/WatchEvents"
GET_JOB = "/rallypoint.v1.JobService/GetJob"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
NO_ROOM = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1_024)]
"""Options of a client that takes nothing before it reads."""
LIMITED = (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")


@asynccontextmanager
async def other_host(port: int) -> AsyncIterator[grpc.aio.Channel]:
    """Return a channel to the coordinator whose connection comes from another address."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port, local_addr=(OTHER_HOST, 0))
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)
        sink.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, grpc.aio.insecure_channel(target, options=client_options()) as channel:
        yield channel


def begin(channel: grpc.aio.Channel, path: str) -> Any:
    """Begin a call, and send nothing."""
    return channel.stream_stream(path)(wait_for_ready=True)


async def ending(call: Any) -> tuple[grpc.StatusCode, str]:
    async with asyncio.timeout(LIMIT_S):
        return await call.code(), unpack_details(await call.trailing_metadata()).reason


async def require_answer(channel: grpc.aio.Channel) -> None:
    stub = coordinator_grpc.CoordinatorServiceStub(channel)
    found = await stub.GetCoordinator(coordinator_pb2.GetCoordinatorRequest(), timeout=LIMIT_S)

    assert found.coordinator.coordinator_id


async def end_all(calls: list[Any]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*(call.code() for call in calls))


@pytest.mark.parametrize("path", [UNARY, WATCH])
async def test_call_without_request_ends(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """After a moment, also one that has a stream of answers."""
    monkeypatch.setattr(limits, "REQUEST_S_MAX", 0.1)
    async with served() as server:
        call = begin(server.channel, path)

        assert (grpc.StatusCode.DEADLINE_EXCEEDED, "NO_HELLO") == await ending(call)


async def test_answers_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may have only so many bytes of them; then it has to read, and others need not wait."""
    monkeypatch.setattr(limits, "UNREAD_BYTES_PER_HOST_MAX", 500_000)
    request = service_pb2.GetJobRequest(job_id="job").SerializeToString()
    labels = {f"key{number}": "\N{FIRE}" * 256 for number in range(32)}
    async with (
        served() as server,
        other_host(server.running.port) as elsewhere,
        AsyncExitStack() as cleaned,
    ):
        for number in range(10):
            agent = server.agent("job", number)
            await agent.hello(spec=job_pb2.JobSpec(min_nodes=99, max_nodes=99), labels=labels)
            await agent.read()
        target = f"127.0.0.1:{server.running.port}"
        channel = grpc.aio.insecure_channel(target, options=[*client_options(), *NO_ROOM])
        deaf = await cleaned.enter_async_context(channel)
        call: Any = deaf.unary_stream(GET_JOB)
        calls = [call(request) for _ in range(10)]
        for call in calls:
            await call.initial_metadata()  # of the answer, which is not read, or of its refusal

        assert LIMITED == await ending(begin(server.channel, UNARY))
        await require_answer(elsewhere)
        sizes = [await read_size(call) for call in calls]

        assert (2, 8) == (sum(size > 250_000 for size in sizes), sizes.count(0))
        async with asyncio.timeout(LIMIT_S):
            while not await has_answer(server.channel):
                pass


async def read_size(call: Any) -> int:
    """Return how many bytes an answer has; 0 for a refusal."""
    try:
        return len(await call.read())
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return 0


async def has_answer(channel: grpc.aio.Channel) -> bool:
    """Return whether a call is not refused."""
    make: Any = channel.unary_unary(UNARY)
    return await make(b"").code() is grpc.StatusCode.OK


@pytest.mark.parametrize("path", [UNARY, WATCH])
async def test_call_that_ends_without_a_request(path: str) -> None:
    """Its side is closed: the status says what is missing."""
    async with served() as server:
        call = begin(server.channel, path)
        await call.done_writing()

        assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD") == await ending(call)


async def test_a_thousand_calls_leave_others_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond the limit are refused, and another host is served, and the same one later."""
    monkeypatch.setattr(limits, "REQUESTS_PER_HOST_MAX", MANY // 2)
    async with served() as server, other_host(server.running.port) as other:
        calls = [begin(server.channel, UNARY) for _ in range(MANY)]
        ended = await first_ended(calls, MANY // 2)
        await require_answer(other)
        codes = [await ending(call) for call in ended]
        await end_all([call for call in calls if not call.done()])
        await require_answer(server.channel)

    assert {LIMITED} == set(codes)
    assert MANY // 2 == len(codes)


async def first_ended(calls: list[Any], count: int) -> list[Any]:
    """Return the calls that have ended when so many have."""
    ended = asyncio.Semaphore(0)
    for call in calls:
        call.add_done_callback(lambda _: ended.release())
    async with asyncio.timeout(LIMIT_S):
        for _ in range(count):
            await ended.acquire()
    return [call for call in calls if call.done()]


async def test_streams_of_reflection_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may say nothing for as long as they like: there are few of them."""
    monkeypatch.setattr(limits, "REFLECTIONS_PER_HOST_MAX", 2)
    async with served() as server, other_host(server.running.port) as other:
        calls = [begin(server.channel, REFLECTION) for _ in range(3)]
        (ended,) = await first_ended(calls, 1)

        assert LIMITED == await ending(ended)
        await require_answer(other)
        await end_all([call for call in calls if not call.done()])


async def test_a_thousand_connections_leave_others_served() -> None:
    """They say nothing, and other hosts and this one get answers."""
    async with served() as server, other_host(server.running.port) as other:
        lines = [
            await asyncio.open_connection("127.0.0.1", server.running.port) for _ in range(MANY)
        ]
        await require_answer(other)
        await require_answer(server.channel)
        for _, writer in lines:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in lines), return_exceptions=True)


async def test_connection_without_calls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the coordinator; a client that calls again notices nothing."""
    options = [
        (name, 200 if name == "grpc.max_connection_idle_ms" else value)
        for name, value in server_options()
    ]
    monkeypatch.setattr("rallypoint.server.serve.server_options", lambda: options)
    async with served() as server:
        await require_answer(server.channel)
        await until_idle(server)
        await require_answer(server.channel)

    assert dict(server_options())["grpc.max_connection_idle_ms"] == 300_000


async def until_idle(server: Served) -> None:
    """Return when the channel has lost its connection."""
    async with asyncio.timeout(LIMIT_S):
        state = server.channel.get_state()
        while state is grpc.ChannelConnectivity.READY:
            await server.channel.wait_for_state_change(state)
            state = server.channel.get_state()
