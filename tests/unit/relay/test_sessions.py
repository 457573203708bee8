"""What an agent of a relay does wrong ends its own stream, not those of its neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from rallypoint.relay.sessions import EMPTY
from rallypoint.wire.channel import MESSAGE_BYTES_MAX
from rallypoint.wire.credentials import TOKEN_KEY, sent_twice
from rallypoint.wire.errors import unpack_details
from support.relays.scripted import LIMIT_S, SESSION, Site, relayed


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with relayed() as made:
        yield made


async def begin(site: Site, hello: bytes = b"hello", **metadata: str) -> Any:
    """Return the stream of an agent that has sent its Hello."""
    make: Any = site.channel.stream_stream(SESSION)
    call = make(metadata=tuple(metadata.items()))
    await call.write(hello)
    return call


async def ending(call: Any) -> tuple[grpc.StatusCode, str]:
    async with asyncio.timeout(LIMIT_S):
        return await call.code(), await call.details()


async def check_carried(site: Site, number: int, call: Any) -> None:
    """Check that an agent is still carried, on the first stream of the relay."""
    await call.write(b"still here")
    said = await site.coordinator.next()

    assert (number, b"still here") == (said.stream, said.message)
    assert 1 == len(site.coordinator.relays)


@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX - 100])
async def test_large_message_ends_one_stream(site: Site, size: int) -> None:
    """One that fits a message of an agent, but not one of the relay with what belongs to it."""
    neighbour = await begin(site)
    await site.coordinator.next()
    speaker = await begin(site)
    await site.coordinator.next()
    await speaker.write(bytes(size))
    code, text = await ending(speaker)
    closing = await site.coordinator.next()
    greeter = await begin(site, bytes(size))

    assert grpc.StatusCode.RESOURCE_EXHAUSTED is code
    assert text.startswith(f"a message has {size:,} bytes; a relay carries at most ")
    assert (2, True) == (closing.stream, closing.HasField("closing"))
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is (await ending(greeter))[0]
    await check_carried(site, 1, neighbour)


async def test_empty_hello_ends_one_stream(site: Site) -> None:
    """The coordinator would take it for a fault of the relay."""
    neighbour = await begin(site)
    await site.coordinator.next()
    code, text = await ending(await begin(site, b""))

    assert (grpc.StatusCode.INVALID_ARGUMENT, EMPTY) == (code, text)
    await check_carried(site, 1, neighbour)


async def test_token_that_is_sent_twice_ends_one_stream(site: Site) -> None:
    """The coordinator would see the last one alone."""
    neighbour = await begin(site)
    await site.coordinator.next()
    make: Any = site.channel.stream_stream(SESSION)
    call = make(metadata=((TOKEN_KEY, "Bearer one"), (TOKEN_KEY, "Bearer two")))
    await call.write(b"hello")
    code, text = await ending(call)

    assert (grpc.StatusCode.UNAUTHENTICATED, sent_twice(TOKEN_KEY)) == (code, text)
    assert "ACCESS_TOKEN_INVALID" == unpack_details(await call.trailing_metadata()).reason
    await check_carried(site, 1, neighbour)
