"""Connects a channel once, and says why that fails, as far as it can be known.

gRPC would try again by itself, after a pause that it chooses. Agents and relays know other ways to
the coordinator, and choose the pause themselves.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio

from rallypoint.base.addresses import first_host
from rallypoint.wire.access import Access
from rallypoint.wire.handshakes import explain, is_closed, probe

CONNECT_S_MAX = 1.0
LOOK_UP_S_MAX = 1.0
"""Longest look-up of a name, which shows whether the name is the problem."""
_CHECK = "/grpc.health.v1.Health/Check"


class Unreachable(Exception):
    """An attempt to connect failed."""

    def __init__(self, text: str, *, is_there: bool = False) -> None:
        """Keep what happened; `is_there`: something listens, but TLS fails."""
        super().__init__(text)
        self.is_there = is_there


async def connect(channel: grpc.aio.Channel, target: str, access: Access) -> None:
    """Wait until the channel is ready; unlike `channel_ready`, fail at the first failure.

    Raises:
        Unreachable: it failed; the text says why, as far as that can be known.
    """
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            state = channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    break
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        text = f"no connection to {target} within {CONNECT_S_MAX:g} s"
        raise Unreachable(text) from None
    if state is not grpc.ChannelConnectivity.READY:
        why = await find_reason(channel, target, access)
        text = f"cannot connect to {target}" + (f": {why}" if why else "")
        raise Unreachable(text, is_there=bool(why))


async def find_reason(channel: grpc.aio.Channel, target: str, access: Access) -> str:
    """Return why a channel cannot connect, if TLS is the reason; else empty."""
    check: Any = channel.unary_unary(_CHECK)
    try:
        await check(b"", timeout=CONNECT_S_MAX)
    except grpc.aio.AioRpcError as error:
        text = error.details() or ""
    else:
        return ""
    if is_closed(text):
        return await asyncio.to_thread(probe, target, access)
    return explain(text)


async def look_up(target: str) -> str:
    """Return why the name of host:port cannot be resolved; empty: it can."""
    host = first_host(target)
    try:
        async with asyncio.timeout(LOOK_UP_S_MAX):
            await asyncio.get_running_loop().getaddrinfo(host, None)
    except socket.gaierror as error:
        return f"cannot resolve {host}: {error.strerror}"
    except UnicodeError:
        return f"cannot resolve {host}: it cannot be a host name; look for a typing error"
    except TimeoutError:
        return f"cannot resolve {host} within {LOOK_UP_S_MAX:g} s"
    return ""
