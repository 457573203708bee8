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
from rallypoint.client.channel import channel_options, read_targets, token_metadata
from rallypoint.client.errors import ClientClosed
from rallypoint.client.failures import Failure, read_failure
from rallypoint.wire.coordinators import Coordinators

IDLE_S = 0.005
"""A connection that has answered since then is taken for alive."""
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
CHECK = Method("/grpc.health.v1.Health/Check", Empty, Empty)
"""Both messages are read as empty ones: any answer will do."""


class Transport:
    """A channel to each coordinator that was called."""

    def __init__(self, target: str, token: str, limit_s: float) -> None:
        """Connect at the first call.

        Args:
            target: host:port of the coordinator, or of several with commas in between.
            token: of the worker; empty: none.
            limit_s: longest call, and longest outage of a stream, unless the caller says otherwise.

        Raises:
            ValueError: one of several is not `host[:port]`.
        """
        self.targets = read_targets(target)
        """In the order in which the next call tries them."""
        self.limit_s = limit_s
        self._is_shared = len(self.targets) > 1
        self._channels: dict[str, grpc.Channel] = {}
        self._metadata = token_metadata(token)
        self._methods: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        """For channels and methods that are made, and for the end."""
        self._closed = threading.Event()
        self._answered: dict[str, float] = {}
        """When the latest answer of each coordinator came."""
        self._pid = os.getpid()

    def close(self) -> None:
        """End all calls."""
        self._closed.set()
        if self._pid == os.getpid():  # a child that was forked has none of gRPC's threads
            with self._lock:
                channels = tuple(self._channels.values())
            for channel in channels:
                channel.close()

    def run(self, call: Call[Request, Response], limit_s: float | None = None) -> Response:
        """Return the answer to a call, after as many attempts as it takes.

        Raises:
            RallypointError: when it fails for good.
        """
        limit_s = self.limit_s if limit_s is None else limit_s
        if call.mark is not None:
            began_s = time.monotonic()
            if began_s - self._answered.get(self.targets[0], -IDLE_S) > IDLE_S:
                self._attempt(Call(CHECK, Empty()), limit_s)
                limit_s = max(0.0, limit_s - (time.monotonic() - began_s))
        return self._attempt(call, limit_s)

    def _attempt(self, call: Call[Request, Response], limit_s: float) -> Response:
        attempts = Attempts(call, self.targets, limit_s, time.monotonic, random.uniform)
        while True:
            timeout_s, target = attempts.prepare(), attempts.backoff.target
            try:
                # With one coordinator the attempt begins when there is a connection. So one that
                # fails may have counted. With several, a connection that fails leads to the next.
                response: Response = self._method(target, call.method)(
                    call.request,
                    timeout=timeout_s,
                    metadata=self._metadata,
                    wait_for_ready=not self._is_shared,
                )
            except grpc.RpcError as error:
                failure = self.read(error)
            else:
                self._answered[target] = time.monotonic()
                return attempts.succeed(response)
            try:
                pause_s = attempts.fail(failure)  # an error from here shows nothing of gRPC
            finally:
                self.targets = attempts.backoff.order
            self.pause(pause_s)

    def begin(self, call: Call[Request, Response], timeout_s: float) -> Any:
        """Make one attempt without waiting for it; return a grpc.Future.

        If it fails, the next call tries another coordinator.
        """
        coordinators = Coordinators(self.targets)
        method = self._method(coordinators.target, call.method)
        future = method.future(call.request, timeout=timeout_s, metadata=self._metadata)

        def look(ended: Any) -> None:
            if ended.code() in _AWAY:
                coordinators.failed()
                self.targets = coordinators.order

        future.add_done_callback(look)
        return future

    def open(self, target: str, method: Method[Request, Response], request: Request) -> Any:
        """Return a new stream of answers."""
        return self._method(target, method, is_stream=True)(request, metadata=self._metadata)

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

    def _method(self, target: str, method: Method[Any, Any], *, is_stream: bool = False) -> Any:
        if self._pid != os.getpid():
            raise ClientClosed("this process was forked from the one that made the client")
        if self._closed.is_set():
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

    def _channel(self, target: str) -> grpc.Channel:
        with self._lock:
            if self._closed.is_set():
                raise ClientClosed("the client was closed")
            channel = self._channels.get(target)
            if channel is None:
                options = channel_options(is_shared=self._is_shared)
                channel = self._channels[target] = grpc.insecure_channel(target, options=options)
            return channel


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
        self._order = transport.targets
        """The coordinator of the stream, and then the others."""
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
                    backoff, following = self._backoff, self._following
                    self._order = self._transport.targets if backoff is None else backoff.order
                    self._stream = self._transport.open(
                        self._order[0], following.method, following.request
                    )
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
                limit_s = self._transport.limit_s
                self._backoff = Backoff(self._order, limit_s, time.monotonic, random.uniform)
            also = self._following.transient if self._is_begun else ()
            pause_s = self._backoff.pause_s(failure, also)
            self._transport.targets = self._backoff.order
            self._transport.pause(pause_s)
        return False
