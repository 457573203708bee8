"""What a call brings, and what it takes away: neither fills memory, or keeps others waiting.

gRPC lets a handler of a call with one request begin when that is there, and waits for it without a
limit. So a client could begin calls without end, each of about 10 KB, and send nothing. Here a call
begins at once: its caller is checked first, its host may have so many that wait, and none waits
for long. Bytes and fields of a request are counted before it is decoded: an empty entry of a list
has two bytes, and takes 50 when it is decoded.

gRPC keeps an answer until its caller has read it, however long that takes, and a caller may have
any number of calls. So a host may have only so many bytes of answers that it has not read: then its
next call is refused before its answer is built.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor

from rallypoint.server.access.usage.callers import connected_peer
from rallypoint.server.access.usage.peers import host_of
from rallypoint.server.access.usage.quotas import HostQuota
from rallypoint.server.access.usage.rests import RECEIVED
from rallypoint.server.contract import limits
from rallypoint.server.contract.calls import CallRefused, Context, InvalidMessage
from rallypoint.server.contract.errors import silent_status
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.wire.limits import find_rule

OTHERS_MAX = 64
"""Fields beside those of lists, also those that only newer clients know."""
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


def fields_max(request: Descriptor) -> int:
    """Return how many fields a request may have; 0: they need not be counted."""
    rules = (
        find_rule(field)
        for field in request.fields
        if field.is_repeated and field.message_type is not None
    )
    entries = sum(rule.items_max for rule in rules if rule is not None)
    return entries + OTHERS_MAX if entries else 0


def has_more_fields(message: bytes, most: int) -> bool:
    """Return whether a message has more fields than that, each entry of a list counted.

    What is no message may seem to have fewer: it cannot be decoded.
    Source: protobuf.dev/programming-guides/encoding.
    """
    at, end = 0, len(message)
    try:
        while at < end:
            most -= 1
            if most < 0:
                return True
            tag, at = _read_number(message, at)
            match tag & 7:
                case 0:  # a number
                    _, at = _read_number(message, at)
                case 1:
                    at += 8
                case 2:  # bytes
                    size, at = _read_number(message, at)
                    at += size
                case 5:
                    at += 4
                case 3 | 4:
                    pass  # a group is the fields between its ends
                case _:
                    return False
    except IndexError:
        pass
    return False


def _read_number(message: bytes, at: int) -> tuple[int, int]:
    """Return a number at a place, and the place after it."""
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError


class Unread:
    """The answers that are on their way."""

    def __init__(self) -> None:
        """Start without answers."""
        self._bytes = HostQuota(
            Limit.UNREAD_PER_HOST, "UNREAD_BYTES_PER_HOST_MAX", limits.RETRY_S, warns=True
        )

    def check(self, context: Any) -> None:
        """Check that the host of a call may have another answer.

        Raises:
            LimitExceeded: when it has not read too many bytes.
        """
        self._bytes.require(host_of(connected_peer(context)))

    def note(self, context: Any, size: int) -> None:
        """Count the answer of a call until it has been sent, or the call has ended."""
        host = host_of(connected_peer(context))
        self._bytes.take(host, size)
        context.add_done_callback(lambda _: self._bytes.give_back(host, size))
