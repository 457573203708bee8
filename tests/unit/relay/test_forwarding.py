"""A relay between clients and a scripted coordinator: calls pass unchanged, agents as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from rallypoint.relay.serve import Settings, relaying
from rallypoint.relay.uplink import RELAY
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.access import Access
from rallypoint.wire.credentials import RELAYED_KEY
from rallypoint.wire.errors import DETAILS_KEY
from support.access.authority import Authority
from support.relays.scripted import LIMIT_S, SESSION, Site, relayed, scripted

NO_SUCH = "/rallypoint.v1.JobService/Answer"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with relayed() as made:
        yield made


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
    assert {(DETAILS_KEY, b"\x08\x05"), (RELAYED_KEY, "1")} <= {*refused.value.trailing_metadata()}


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


async def test_expired_certificate_has_a_warning(tmp_path: Path) -> None:
    """Agents would refuse the relay, which starts nevertheless: a certificate can be renewed."""
    pair = Authority(tmp_path).issue("relay", ["127.0.0.1"], days=-1)
    listening = Access(is_tls=True, cert_file=pair.cert, key_file=pair.key)
    settings = Settings("127.0.0.1", 0, "127.0.0.1:1", listening=listening)
    logged = asyncio.Event()

    def note(_: object, __: str, line: Any) -> Any:
        if (line["event"], line.get("path")) == ("certificate_expired", pair.cert):
            logged.set()
        return line

    with capture_logs(processors=[note]):
        async with relaying(settings), asyncio.timeout(LIMIT_S):
            await logged.wait()


async def test_relay_carries_no_relay(site: Site) -> None:
    """It would hide how many agents there are."""
    make: Any = site.channel.stream_stream(RELAY)
    call = make()  # sends nothing: a write may break once the call is refused

    async with asyncio.timeout(LIMIT_S):
        assert grpc.StatusCode.UNIMPLEMENTED is await call.code()
