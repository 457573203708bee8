"""Carries calls of the asyncio client, in one event loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Generic, Self

import grpc
import grpc.aio

from rallypoint.client.attempts import Attempts, Backoff, Call, Method, Request, Response
from rallypoint.client.calls.lists import Following, Item, Listing
from rallypoint.client.channel import channel_options, read_targets, token_metadata
from rallypoint.client.errors import ClientClosed
from rallypoint.client.failures import Failure, read_failure


class Transport:
    """A channel to each coordinator that was called."""

    def __init__(self, target: str, token: str, limit_s: float) -> None:
        """Connect at the first call; the arguments are those of the blocking one."""
        self.targets = read_targets(target)
        """In the order in which the next call tries them."""
        self.limit_s = limit_s
        self._is_shared = len(self.targets) > 1
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._metadata = token_metadata(token)
        self._methods: dict[tuple[str, str], Any] = {}
        self._is_closed = False

    async def close(self) -> None:
        """End all calls."""
        self._is_closed = True
        for channel in self._channels.values():
            await channel.close()

    async def run(self, call: Call[Request, Response], limit_s: float | None = None) -> Response:
        """Return the answer to a call, after as many attempts as it takes.

        Raises:
            RallypointError: when it fails for good.
        """
        limit_s = self.limit_s if limit_s is None else limit_s
        attempts = Attempts(call, self.targets, limit_s, time.monotonic, random.uniform)
        while True:
            timeout_s, target = attempts.prepare(), attempts.backoff.target
            try:
                # With one coordinator the attempt begins when there is a connection. So one that
                # fails may have counted. With several, a connection that fails leads to the next.
                response: Response = await self._method(target, call.method)(
                    call.request,
                    timeout=timeout_s,
                    metadata=self._metadata,
                    wait_for_ready=not self._is_shared,
                )
            except grpc.RpcError as error:
                failure = self.read(error)
            else:
                return attempts.succeed(response)
            try:
                pause_s = attempts.fail(failure)  # an error from here shows nothing of gRPC
            finally:
                self.targets = attempts.backoff.order
            await asyncio.sleep(pause_s)

    def open(self, target: str, method: Method[Request, Response], request: Request) -> Any:
        """Return a new stream of answers."""
        return self._method(target, method, is_stream=True)(request, metadata=self._metadata)

    def read(self, error: grpc.RpcError) -> Failure:
        """Return how a call failed.

        Raises:
            ClientClosed: because this client was closed.
        """
        if self._is_closed:
            raise ClientClosed("the client was closed") from None
        return read_failure(error)

    def _method(self, target: str, method: Method[Any, Any], *, is_stream: bool = False) -> Any:
        if self._is_closed:
            raise ClientClosed("the client was closed")
        found = self._methods.get((target, method.path))
        if found is None:
            channel = self._channel(target)
            make: Any = channel.unary_stream if is_stream else channel.unary_unary
            found = make(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            self._methods[target, method.path] = found
        return found

    def _channel(self, target: str) -> grpc.aio.Channel:
        channel = self._channels.get(target)
        if channel is None:
            options = channel_options(is_shared=self._is_shared)
            channel = self._channels[target] = grpc.aio.insecure_channel(target, options=options)
        return channel


class Pages(Generic[Item]):
    """The entries of a list, read page by page as they are wanted."""

    def __init__(self, transport: Transport, listing: Listing[Any, Any, Item]) -> None:
        """Begin before the first page."""
        self._transport = transport
        self._listing = listing
        self.first: Any = None
        """The first page, once it was read: the message of the contract."""

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Yield every entry, once."""
        while True:
            page = await self._transport.run(self._listing.call())
            self.first = page if self.first is None else self.first
            for item in self._listing.items(page):
                yield item
            if not self._listing.advance(page):
                return


class Watch(Generic[Item]):
    """What a stream brings. It connects again by itself; it ends when it is closed.

    It begins with the first answer, for which `async with` waits: what happens later is not missed.
    """

    def __init__(self, transport: Transport, following: Following[Any, Any, Item]) -> None:
        """Begin without a connection."""
        self._transport = transport
        self._following = following
        self._items: deque[Item] = deque()
        self._stream: Any = None
        self._order = transport.targets
        """The coordinator of the stream, and then the others."""
        self._backoff: Backoff | None = None
        """Of the outage; None: there is none."""
        self._is_begun = False

    async def __aenter__(self) -> Self:
        """Wait for the first answer.

        Raises:
            RallypointError: when there is none.
        """
        if not self._is_begun:
            await self._receive()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the stream."""
        if self._stream is not None:
            self._stream.cancel()

    def __aiter__(self) -> AsyncIterator[Item]:
        """Return itself."""
        return self

    async def __anext__(self) -> Item:
        """Wait for the next one.

        Raises:
            RallypointError: when there is none, because of an outage that is too long or a refusal.
            StopAsyncIteration: when the coordinator has ended it.
        """
        while not self._items:
            if not await self._receive():
                raise StopAsyncIteration
        return self._items.popleft()

    async def _receive(self) -> bool:
        """Take one answer; return whether there was one."""
        while True:
            try:
                if self._stream is None:
                    backoff, following = self._backoff, self._following
                    self._order = self._transport.targets if backoff is None else backoff.order
                    self._stream = self._transport.open(
                        self._order[0], following.method, following.request
                    )
                answer = await self._stream.read()
            except grpc.RpcError as error:
                self._stream = None
                failure = self._transport.read(error)
            else:
                if answer is grpc.aio.EOF:
                    return False
                self._backoff, self._is_begun = None, True
                self._items.extend(self._following.take(answer))
                return True
            if self._backoff is None:
                limit_s = self._transport.limit_s
                self._backoff = Backoff(self._order, limit_s, time.monotonic, random.uniform)
            also = self._following.transient if self._is_begun else ()
            pause_s = self._backoff.pause_s(failure, also)
            self._transport.targets = self._backoff.order
            await asyncio.sleep(pause_s)
