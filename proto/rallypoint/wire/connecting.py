"""Connects a channel once, and says why that fails, as far as it can be known.

gRPC would try again by itself, after a pause that it chooses. Agents and relays know other ways to
the coordinator, and choose the pause themselves.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from rallypoint.base.names import Unresolved
from rallypoint.wire.access import Access
from rallypoint.wire.handshakes import explain, is_closed, probe
from rallypoint.wire.resolved import Resolved, has_name, resolve_soon

CONNECT_S_MAX = 1.0
"""How long a connection may take, once its address is known."""
_CHECK = "/grpc.health.v1.Health/Check"


class Unreachable(Exception):
    """An attempt to connect failed."""

    def __init__(self, text: str, *, is_answer: bool = False) -> None:
        """Keep what happened.

        Args:
            text: why it failed.
            is_answer: that is more than silence: TLS fails, or the name has no address.
        """
        super().__init__(text)
        self.is_answer = is_answer


async def find_way(target: str) -> Resolved:
    """Return where a channel to host:port leads.

    Raises:
        Unreachable: the name has no address, or none is known in time; the text says so.
    """
    try:
        return await resolve_soon(target)
    except Unresolved as error:
        raise Unreachable(str(error), is_answer=True) from None


def may_have_moved(channel: grpc.aio.Channel, target: str) -> bool:
    """Return whether a channel to a name does not connect: it may have other addresses by now."""
    is_failing = channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
    return is_failing and has_name(target)


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
        raise Unreachable(text, is_answer=bool(why))


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
    return explain(text, target, access)
