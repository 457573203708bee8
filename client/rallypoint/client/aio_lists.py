"""The lists and the watches of the asyncio client."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Generic, Self

import grpc

from rallypoint.client.aio_transport import Transport
from rallypoint.client.attempts import Backoff
from rallypoint.client.calls.lists import Following, Item, Listing
from rallypoint.client.channel import Stream


class Pages(Generic[Item]):
    """The entries of a list, read page by page as they are wanted."""

    def __init__(self, transport: Transport, listing: Listing[Any, Any, Item]) -> None:
        """Begin before the first page."""
        self._transport = transport
        self._listing = listing
        self.first: Any = None
        """The first page, once it was read: the message of the contract."""
        self.latest: Any = None
        """The page that was read last."""

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Yield every entry, once."""
        while True:
            page = await self._transport.run(self._listing.call())
            self.first, self.latest = page if self.first is None else self.first, page
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
        self._stream: Stream[Any] | None = None
        self._order = transport.targets
        """The coordinator of the stream, and then the others."""
        self._backoff: Backoff | None = None
        """Of the outage; None: there is none."""
        self._is_begun = False
        self._is_closed = False

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
        """Close it."""
        self._close()

    def _close(self) -> None:
        """End the stream, and whatever waits for it."""
        self._is_closed = True
        stream = self._stream
        if stream is not None:
            stream.call.cancel()

    def __aiter__(self) -> AsyncIterator[Item]:
        """Return itself."""
        return self

    async def __anext__(self) -> Item:
        """Wait for the next one.

        Raises:
            RallypointError: when there is none, because of an outage that is too long or a refusal.
            StopAsyncIteration: when it was closed, or the coordinator has ended it.
        """
        while not self._items:
            if not await self._receive():
                raise StopAsyncIteration
        return self._items.popleft()

    async def _open(self) -> Stream[Any]:
        backoff, following = self._backoff, self._following
        self._order = self._transport.targets if backoff is None else backoff.order
        return await self._transport.open(self._order[0], following.method, following.request)

    async def _receive(self) -> bool:
        """Take one answer; return whether there was one."""
        while not self._is_closed:
            stream = self._stream
            try:
                if stream is None:
                    stream = self._stream = await self._open()
                answer = await self._transport.receive(stream)
            except grpc.RpcError as error:
                self._stream = None
                if self._is_closed:
                    break
                line = None if stream is None else stream.line
                failure = await self._transport.read(error, self._order[0], line)
            else:
                if answer is None:
                    break
                self._backoff, self._is_begun = None, True
                self._transport.reached(stream.target)
                self._items.extend(self._following.take(answer))
                return True
            if stream is not None and await self._transport.is_renewed(failure, stream.metadata):
                continue
            if self._backoff is None:
                limit_s = self._transport.limit_s
                self._backoff = Backoff(self._order, limit_s, time.monotonic, random.uniform)
            also = self._following.transient if self._is_begun else ()
            pause_s = self._backoff.pause_s(failure, also)
            self._transport.targets = self._backoff.order
            await self._transport.pause(pause_s)
        return False
