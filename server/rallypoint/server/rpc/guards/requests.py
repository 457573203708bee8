"""Receives the one request of a call, for which the call waits only so long.

gRPC lets a handler of such a call begin when its request is there, and waits for that without a
limit. So a client could begin calls without end, each of about 10 KB, and send nothing. Here a call
begins at once: its caller is checked first, its host may have so many that wait, and none waits
for long.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.rpc.calls import CallRefused, Context
from rallypoint.server.rpc.convert.checks import InvalidMessage
from rallypoint.server.rpc.errors import silent_status
from rallypoint.server.rpc.guards import limits
from rallypoint.server.rpc.guards.peers import host_of
from rallypoint.server.rpc.guards.quotas import HostQuota
from rallypoint.server.rpc.guards.received import RECEIVED

_EOF: object = grpc.aio.EOF


class TooLarge(InvalidMessage):
    """A message has more bytes than any that fits the contract: it is not decoded.

    A message of many empty parts takes 27 times its bytes when it is decoded.
    """

    def __init__(self, size: int, most: int) -> None:
        """Keep how many bytes there are, and how many there may be."""
        super().__init__("message", f"has {size:,} bytes, more than {most:,}")


class TooMany(TooLarge):
    """A message has more fields than any that fits the contract: it is not decoded."""

    def __init__(self, most: int) -> None:
        """Keep how many fields there may be."""
        InvalidMessage.__init__(
            self, "message", f"has more than {most} fields and entries of lists"
        )


def measure(message: bytes, most: int) -> None:
    """Note the bytes of a message, before it is decoded.

    Raises:
        TooLarge: when it has more than `most`.
    """
    received = RECEIVED.get()
    if received is not None:
        received.size = len(message)
    if len(message) > most:
        raise TooLarge(len(message), most)


class Requests:
    """The calls whose request has not arrived."""

    def __init__(self) -> None:
        """Start without calls."""
        self._awaited = HostQuota(
            Limit.REQUESTS_PER_HOST, "REQUESTS_PER_HOST_MAX", limits.RETRY_S, warns=True
        )

    async def receive(self, context: Context, most: int) -> bytes:
        """Return the request of a call.

        Args:
            context: of the call.
            most: bytes that the request may have.

        Raises:
            LimitExceeded: when too many calls of its host wait.
            CallRefused: when none comes in time.
            InvalidMessage: when the client sends none.
            TooLarge: when it has more.
        """
        with self._awaited.taking(host_of(context.peer())):
            try:
                async with asyncio.timeout(limits.REQUEST_S_MAX):
                    request: Any = await context.read()
            except TimeoutError:
                status = silent_status(f"no request arrived within {limits.REQUEST_S_MAX:g} s")
                raise CallRefused(status) from None
        if request is _EOF:
            raise InvalidMessage("message", "is missing")
        assert isinstance(request, bytes)
        measure(request, most)
        return request
