"""Calls to other coordinators, on one channel for each.

A forwarded call ends in time: by the deadline of its client, when its client has gone, when the
connection breaks, and when the shard gets another owner. The last one covers an owner that hangs.

A process that stood still forwards nothing for a moment: the calls that it finds may be old.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import grpc
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status
from msgspec import Struct

from rallypoint.server.access.marks import forwarded
from rallypoint.server.contract.calls import CallRefused, Context, is_set_within
from rallypoint.server.contract.errors import owner_lost_status
from rallypoint.server.contract.refusals import status_of
from rallypoint.server.contract.routes import Route
from rallypoint.server.etcd.lease import now_s
from rallypoint.server.fleet.directory import Directory
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.access import PLAIN
from rallypoint.wire.channel import Options, client_options
from rallypoint.wire.connecting import Unreachable, find_way, may_have_moved
from rallypoint.wire.credentials import Credentials

LOOK_S = 0.2
"""Pause between two looks at the clock."""
CHANNELS_MAX = 64
"""Channels that are kept; a store has fewer coordinators."""
STILL_S = 1.0
"""Time between two looks, in seconds, that is too long. Clients give a call up after 2 s."""
WARY_S = 1.0
"""How long what waited meanwhile may still arrive, in seconds."""
RECONNECT_MS, RECONNECT_MS_MAX = 100, 1_000
"""Pauses between attempts to connect. A coordinator that comes back is reached soon."""


class _Call(Protocol):
    def cancel(self) -> bool:
        """End the call."""


class _Sent(Struct, eq=False):
    """A forwarded call in progress."""

    call: _Call
    shard: int
    address: str
    """Of the owner, when the call was made."""
    trouble: Callable[[], str]
    """Returns why there is no other owner, as far as is known."""
    is_lost: bool = False
    """The shard has another owner by now."""


class Standstill:
    """Knows whether this process stood still a moment ago: it was not looked at for a long time.

    What then waits in its connections may be old: the client has given the call up, has asked
    another coordinator, and has gone on since. Pure: the time is an argument.
    """

    def __init__(self, now_s: float) -> None:
        """Begin to look."""
        self._seen_s = now_s
        self._wary_until_s = now_s

    def look(self, now_s: float) -> bool:
        """Return whether what arrives now may be old."""
        if now_s - self._seen_s > STILL_S:
            self._wary_until_s = now_s + WARY_S
        self._seen_s = now_s
        return now_s < self._wary_until_s


class Forwarder:
    """Makes calls to the owners of shards. `run` ends those whose owner has changed."""

    def __init__(self, directory: Directory, credentials: Credentials | None = None) -> None:
        """Begin without channels.

        Args:
            directory: knows the owners.
            credentials: of this coordinator, for the others; None: connections are plain.
        """
        self._directory = directory
        self._credentials = credentials or Credentials(PLAIN)
        self._channels: dict[tuple[str, int], grpc.aio.Channel] = {}
        """By address and version of the certificates, the one that was used last at the end."""
        self._sent: set[_Sent] = set()
        self._has_ended = False
        self._standstill = Standstill(now_s())

    async def run(self) -> None:
        """End calls to former owners, until cancelled; then close all channels."""
        try:
            while True:
                changed = self._directory.changed
                for sent in self._sent:
                    if self._directory.owner_of(sent.shard) != sent.address:
                        sent.is_lost = True
                        sent.call.cancel()
                self._standstill.look(now_s())
                await is_set_within(changed, LOOK_S)
        finally:
            channels, self._channels = tuple(self._channels.values()), {}
            for channel in channels:
                await channel.close()

    def end(self) -> None:
        """End all calls, also those that come: this process ends, and clients go elsewhere."""
        self._has_ended = True
        for sent in self._sent:
            sent.is_lost = True
            sent.call.cancel()

    async def call(
        self, route: Route, shard: int, address: str, request: bytes, context: Context
    ) -> bytes:
        """Forward a call; return the encoded answer.

        Args:
            route: its method.
            shard: that it is about.
            address: of the owner.
            request: encoded.
            context: of the client's call.

        Raises:
            CallRefused: when it ends with another status than OK.
        """
        self._refuse_old()
        make: Any = (await self._channel(shard, address)).unary_unary(route.path)
        call = make(request, timeout=context.time_remaining(), metadata=forwarded(context, shard))
        with self._watching(call, shard, address) as sent:
            answer: bytes = await _translated(sent, call)
            return answer

    async def stream(
        self, route: Route, shard: int, address: str, request: bytes, context: Context
    ) -> AsyncGenerator[bytes, None]:
        """Forward a call with many answers; yield each, encoded. The arguments are as above.

        Raises:
            CallRefused: when it ends with another status than OK.
        """
        self._refuse_old()
        make: Any = (await self._channel(shard, address)).unary_stream(route.path)
        call = make(request, timeout=context.time_remaining(), metadata=forwarded(context, shard))
        with self._watching(call, shard, address) as sent:
            while (answer := await _translated(sent, call.read())) is not grpc.aio.EOF:
                yield answer

    def _refuse_old(self) -> None:
        if self._standstill.look(now_s()):
            text = "this coordinator stood still, so the call may be an old one: send it again"
            raise CallRefused(status_of(details_pb2.REFUSAL_REASON_NO_OWNER, problem=text))

    @contextmanager
    def _watching(self, call: _Call, shard: int, address: str) -> Iterator[_Sent]:
        """End the call with the context, or when the shard gets another owner."""
        sent = _Sent(call, shard, address, self._directory.trouble)
        self._sent.add(sent)
        has_moved = self._directory.owner_of(shard) != address  # since it was looked up
        if has_moved or self._has_ended:
            sent.is_lost = True
            call.cancel()
        try:
            yield sent
        finally:
            self._sent.discard(sent)
            call.cancel()

    async def _channel(self, shard: int, address: str) -> grpc.aio.Channel:
        """Return the channel to a coordinator; one that cannot connect is opened again."""
        key = address, self._credentials.version
        channel = self._channels.pop(key, None)
        if channel is None or may_have_moved(channel, address):
            try:
                at = await find_way(address)
            except Unreachable:
                trouble = self._directory.trouble()
                raise CallRefused(owner_lost_status(shard, address, trouble)) from None
            finally:
                if channel is not None:
                    await channel.close()
            # Another call may have opened one while the name was looked up.
            channel = self._channels.pop(key, None)
            channel = channel or self._credentials.open_aio_channel(at, _options())
        self._channels[key] = channel
        if len(self._channels) > CHANNELS_MAX:
            oldest = self._channels.pop(next(iter(self._channels)))
            await oldest.close()
        return channel


def _options() -> Options:
    return [
        *client_options(),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS),
        ("grpc.min_reconnect_backoff_ms", RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ]


async def _translated(sent: _Sent, answer: Awaitable[Any]) -> Any:
    """Return an answer, or raise what the end of its call means.

    Raises:
        CallRefused: when the call ends with another status than OK.
    """
    try:
        return await answer
    except asyncio.CancelledError:
        if not sent.is_lost:
            raise  # the client has gone
        raise CallRefused(_lost(sent)) from None
    except grpc.aio.AioRpcError as error:
        raise _to_refusal(sent, error) from None


def _lost(sent: _Sent) -> Status:
    return owner_lost_status(sent.shard, sent.address, sent.trouble())


def _to_refusal(sent: _Sent, error: grpc.aio.AioRpcError) -> CallRefused:
    status = rpc_status.from_call(error)
    if status is None:
        if error.code() in _OF_THE_CONNECTION:
            return CallRefused(_lost(sent))
        status = Status(code=error.code().value[0], message=error.details() or "")
    return CallRefused(status, is_forwarded=True)


_OF_THE_CONNECTION = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Statuses that gRPC makes itself when a connection breaks. The owner's own ones have details."""
