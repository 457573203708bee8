"""Carries calls of the blocking client. Threads may share it; processes may not.

Between calls nothing polls the channel, so a connection that broke meanwhile is only noticed by the
next call, which fails and may have counted. A call that counts therefore begins with a health check
if the channel was idle. (The asyncio channel is always polled.)
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Generic, Self

import grpc
from google.protobuf.empty_pb2 import Empty

from rallypoint.client.attempts import Attempts, Backoff, Call, Method, Request, Response
from rallypoint.client.calls.lists import Following, Item, Listing
from rallypoint.client.channel import channel_options, token_metadata
from rallypoint.client.errors import ClientClosed
from rallypoint.client.failures import Failure, read_failure

IDLE_S = 0.005
"""A connection that has answered since then is taken for alive."""
CHECK = Method("/grpc.health.v1.Health/Check", Empty, Empty)
"""Both messages are read as empty ones: any answer will do."""


class Transport:
    """One channel."""

    def __init__(self, target: str, token: str, limit_s: float) -> None:
        """Connect at the first call.

        Args:
            target: host:port of the coordinator.
            token: of the worker; empty: none.
            limit_s: longest call, and longest outage of a stream, unless the caller says otherwise.
        """
        self.target = target
        self.limit_s = limit_s
        self._channel = grpc.insecure_channel(target, options=channel_options())
        self._metadata = token_metadata(token)
        self._methods: dict[str, Any] = {}
        self._closed = threading.Event()
        self._answered_s = -IDLE_S
        """When the latest answer came."""
        self._pid = os.getpid()

    def close(self) -> None:
        """End all calls."""
        self._closed.set()
        if self._pid == os.getpid():  # a child that was forked has none of gRPC's threads
            self._channel.close()

    def run(self, call: Call[Request, Response], limit_s: float | None = None) -> Response:
        """Return the answer to a call, after as many attempts as it takes.

        Raises:
            RallypointError: when it fails for good.
        """
        limit_s = self.limit_s if limit_s is None else limit_s
        if call.mark is not None:
            began_s = time.monotonic()
            if began_s - self._answered_s > IDLE_S:
                self._attempt(Call(CHECK, Empty()), limit_s)
                limit_s = max(0.0, limit_s - (time.monotonic() - began_s))
        return self._attempt(call, limit_s)

    def _attempt(self, call: Call[Request, Response], limit_s: float) -> Response:
        attempts = Attempts(call, self.target, limit_s, time.monotonic, random.uniform)
        while True:
            timeout_s = attempts.prepare()
            try:
                # The attempt begins when there is a connection. So one that fails may have counted.
                response: Response = self._method(call.method)(
                    call.request, timeout=timeout_s, metadata=self._metadata, wait_for_ready=True
                )
            except grpc.RpcError as error:
                failure = self.read(error)
            else:
                self._answered_s = time.monotonic()
                return attempts.succeed(response)
            self.pause(attempts.fail(failure))  # an error from here shows nothing of gRPC

    def begin(self, call: Call[Request, Response], timeout_s: float) -> Any:
        """Make one attempt without waiting for it; return a grpc.Future."""
        method = self._method(call.method)
        return method.future(call.request, timeout=timeout_s, metadata=self._metadata)

    def open(self, method: Method[Request, Response], request: Request) -> Any:
        """Return a new stream of answers."""
        return self._method(method, is_stream=True)(request, metadata=self._metadata)

    def read(self, error: grpc.RpcError) -> Failure:
        """Return how a call failed.

        Raises:
            ClientClosed: because this client was closed.
        """
        if self._closed.is_set():
            raise ClientClosed("the client was closed") from None
        return read_failure(error)

    def pause(self, pause_s: float) -> None:
        """Wait before another attempt.

        Raises:
            ClientClosed: meanwhile.
        """
        if self._closed.wait(pause_s):
            raise ClientClosed("the client was closed")

    def _method(self, method: Method[Any, Any], *, is_stream: bool = False) -> Any:
        if self._pid != os.getpid():
            raise ClientClosed("this process was forked from the one that made the client")
        if self._closed.is_set():
            raise ClientClosed("the client was closed")
        found = self._methods.get(method.path)
        if found is None:
            make: Any = self._channel.unary_stream if is_stream else self._channel.unary_unary
            found = make(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            self._methods[method.path] = found
        return found


class Pages(Generic[Item]):
    """The entries of a list, read page by page as they are wanted."""

    def __init__(self, transport: Transport, listing: Listing[Any, Any, Item]) -> None:
        """Begin before the first page."""
        self._transport = transport
        self._listing = listing
        self.first: Any = None
        """The first page, once it was read: the message of the contract."""

    def __iter__(self) -> Iterator[Item]:
        """Yield every entry, once."""
        while True:
            page = self._transport.run(self._listing.call())
            self.first = page if self.first is None else self.first
            yield from self._listing.items(page)
            if not self._listing.advance(page):
                return


class Watch(Generic[Item]):
    """What a stream brings. It connects again by itself; it ends when it is closed.

    It begins with the first answer, for which `with` waits: what happens later is not missed. One
    thread reads it; any may close it.
    """

    def __init__(self, transport: Transport, following: Following[Any, Any, Item]) -> None:
        """Begin without a connection."""
        self._transport = transport
        self._following = following
        self._items: deque[Item] = deque()
        self._stream: Any = None
        self._backoff: Backoff | None = None
        """Of the outage; None: there is none."""
        self._is_begun = False
        self._is_closed = False

    def __enter__(self) -> Self:
        """Wait for the first answer.

        Raises:
            RallypointError: when there is none.
        """
        if not self._is_begun:
            self._receive()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End the stream, and whatever waits for it."""
        self._is_closed = True
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def __iter__(self) -> Iterator[Item]:
        """Return itself."""
        return self

    def __next__(self) -> Item:
        """Wait for the next one.

        Raises:
            RallypointError: when there is none, because of an outage that is too long or a refusal.
            StopIteration: when it was closed, or the coordinator has ended it.
        """
        while not self._items:
            if not self._receive():
                raise StopIteration
        return self._items.popleft()

    def _receive(self) -> bool:
        """Take one answer; return whether there was one."""
        while not self._is_closed:
            try:
                if self._stream is None:
                    following = self._following
                    self._stream = self._transport.open(following.method, following.request)
                answer = next(self._stream)
            except StopIteration:
                break
            except grpc.RpcError as error:
                self._stream = None
                if self._is_closed:
                    break
                failure = self._transport.read(error)
            else:
                self._backoff, self._is_begun = None, True
                self._items.extend(self._following.take(answer))
                return True
            if self._backoff is None:
                target, limit_s = self._transport.target, self._transport.limit_s
                self._backoff = Backoff(target, limit_s, time.monotonic, random.uniform)
            also = self._following.transient if self._is_begun else ()
            self._transport.pause(self._backoff.pause_s(failure, also))
        return False
