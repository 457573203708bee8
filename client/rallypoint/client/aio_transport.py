"""Carries calls of the asyncio client, in one event loop.

A thread looks at the files of the access: a file server that hangs must not stop the loop.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.empty_pb2 import Empty

from rallypoint.base.names import Unresolved
from rallypoint.client.attempts import CHECK, Attempts, Call, Method, Request, Response
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
            await self.pause(pause_s)
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
        await self.look()
        line, metadata = await self._find(target), self._connections.metadata()
        call = line.method(method, is_stream=True)(request, metadata=metadata)
        return Stream(line, target, metadata, call)

    async def receive(self, stream: Stream[grpc.aio.Channel]) -> Any:
        """Return the next answer; None: the stream has ended."""
        answer = await stream.call.read()
        return None if answer is grpc.aio.EOF else answer

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

    async def pause(self, pause_s: float) -> None:
        """Wait before another attempt."""
        await asyncio.sleep(pause_s)

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
