"""Carries calls of the asyncio client, in one event loop.

A thread looks at the files of the access: a file server that hangs must not stop the loop.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.empty_pb2 import Empty

from rallypoint.base.names import Unresolved
from rallypoint.client.attempts import CHECK, Attempts, Backoff, Call, Method, Request, Response
from rallypoint.client.calls.lists import Following, Item, Listing
from rallypoint.client.channel import DENIED, GREET_S_MAX, Connections, Line, Stream
from rallypoint.client.errors import ClientClosed
from rallypoint.client.failures import Failure, Unresolvable, to_error
from rallypoint.wire.access import Access
from rallypoint.wire.credentials import Credentials, Metadata
from rallypoint.wire.resolved import has_name, resolve_soon

READ_S_MAX = 1.0
"""How long a call waits for renewed files. Those from before count then."""

_T = TypeVar("_T")


class Transport:
    """A channel to each coordinator that was called."""

    def __init__(
        self, target: str, token: str, limit_s: float, access: Access | None = None
    ) -> None:
        """Connect at the first call; the arguments are those of the blocking one."""
        self._connections: Connections[grpc.aio.Channel] = Connections(
            target, token, access, Credentials.open_aio_channel
        )
        self.targets = self._connections.targets
        """In the order in which the next call tries them."""
        self.limit_s = limit_s
        self._is_closed = False

    async def close(self) -> None:
        """End all calls."""
        self._is_closed = True
        for channel in self._connections.channels():
            await channel.close()

    async def run(self, call: Call[Request, Response], limit_s: float | None = None) -> Response:
        """Return the answer to a call, after as many attempts as it takes.

        Raises:
            RallypointError: when it fails for good.
        """
        limit_s = self.limit_s if limit_s is None else limit_s
        began_s, target = time.monotonic(), self.targets[0]
        await self.look()
        if self._connections.is_new(target):
            await self._greet(target, limit_s)
        attempts = Attempts(call, self.targets, limit_s, time.monotonic, random.uniform, began_s)
        while True:
            timeout_s, target = attempts.prepare(), attempts.backoff.target
            line, metadata = None, self._connections.metadata()
            try:
                line = await self._find(target)
                # With one coordinator the attempt begins when there is a connection. So one that
                # fails may have counted. With several, a connection that fails leads to the next.
                response: Response = await line.method(call.method)(
                    call.request,
                    timeout=timeout_s,
                    metadata=metadata,
                    wait_for_ready=self._connections.waits_for_connection(target),
                )
            except grpc.RpcError as error:
                failure = await self.read(error, target, line)
            else:
                self.reached(target)
                return attempts.succeed(response)
            if await self.is_renewed(failure, metadata):
                continue
            try:
                pause_s = attempts.fail(failure)  # an error from here shows nothing of gRPC
            finally:
                self.targets = attempts.backoff.order
            await asyncio.sleep(pause_s)
            await self.look()

    async def _greet(self, target: str, limit_s: float) -> None:
        """Learn whether TLS keeps this client from a coordinator that has never answered.

        Raises:
            HandshakeFailed: it does.
        """
        line, timeout_s = None, min(GREET_S_MAX, limit_s / 2)
        try:
            line = await self._find(target)
            await line.method(CHECK)(
                Empty(), timeout=timeout_s, metadata=self._connections.metadata()
            )
        except grpc.RpcError as error:
            failure = await self.read(error, target, line)
            if failure.is_final:
                raise to_error(failure) from None
        else:
            self.reached(target)

    def reached(self, target: str) -> None:
        """Note an answer."""
        self._connections.reached(target)

    async def open(
        self, target: str, method: Method[Request, Response], request: Request
    ) -> Stream[grpc.aio.Channel]:
        """Return a new stream of answers."""
        line, metadata = await self._find(target), self._connections.metadata()
        call = line.method(method, is_stream=True)(request, metadata=metadata)
        return Stream(line, target, metadata, call)

    async def look(self) -> None:
        """Let renewed files count from the next attempt on, if they can be read soon."""
        if self._connections.is_due:
            await _read_files(self._connections.look)

    async def is_renewed(self, failure: Failure, metadata: Metadata) -> bool:
        """Return whether a call was refused that had an old token."""
        if failure.code not in DENIED:
            return False
        has_newer = partial(self._connections.has_newer, failure, metadata)
        return await _read_files(has_newer) or False

    async def read(
        self, error: grpc.RpcError, target: str, line: Line[grpc.aio.Channel] | None
    ) -> Failure:
        """Return how a call failed.

        Raises:
            ClientClosed: because this client was closed.
        """
        if self._is_closed:
            raise ClientClosed("the client was closed") from None
        failure = self._connections.read(error, target)
        if line is not None and has_name(target):
            self._connections.drop_if_lost(failure, target, line)
        if self._connections.is_unclear(failure, target):
            failure = await asyncio.to_thread(self._connections.look_into, failure, target)
        return failure

    async def _find(self, target: str) -> Line[grpc.aio.Channel]:
        if self._is_closed:
            raise ClientClosed("the client was closed")
        line = self._connections.find(target)
        if line is None:
            try:
                line = self._connections.open(await resolve_soon(target))
            except Unresolved as error:
                raise Unresolvable(error) from None
        return line


async def _read_files(call: Callable[[], _T]) -> _T | None:
    """Return what a thread finds in the files; None when they cannot be read soon.

    The thread is a daemon: a file server that hangs keeps no program from ending.
    """
    found, done, loop = list[_T](), asyncio.Event(), asyncio.get_running_loop()

    def read() -> None:
        found.append(call())
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=read, name="access", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_S_MAX):
            await done.wait()
    return found[0] if found else None


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
        self._stream: Stream[grpc.aio.Channel] | None = None
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
            self._stream.call.cancel()

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

    async def _open(self) -> Stream[grpc.aio.Channel]:
        backoff, following = self._backoff, self._following
        self._order = self._transport.targets if backoff is None else backoff.order
        return await self._transport.open(self._order[0], following.method, following.request)

    async def _receive(self) -> bool:
        """Take one answer; return whether there was one."""
        while True:
            stream = self._stream
            try:
                if stream is None:
                    await self._transport.look()
                    stream = self._stream = await self._open()
                answer = await stream.call.read()
            except grpc.RpcError as error:
                self._stream = None
                line = None if stream is None else stream.line
                failure = await self._transport.read(error, self._order[0], line)
            else:
                if answer is grpc.aio.EOF:
                    return False
                self._backoff, self._is_begun = None, True
                self._transport.reached(stream.target)
                self._items.extend(self._following.take(answer))
                return True
            if stream and await self._transport.is_renewed(failure, stream.metadata):
                continue
            if self._backoff is None:
                limit_s = self._transport.limit_s
                self._backoff = Backoff(self._order, limit_s, time.monotonic, random.uniform)
            also = self._following.transient if self._is_begun else ()
            pause_s = self._backoff.pause_s(failure, also)
            self._transport.targets = self._backoff.order
            await asyncio.sleep(pause_s)
