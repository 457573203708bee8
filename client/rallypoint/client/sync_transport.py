"""Carries calls of the blocking client. Threads may share it; processes may not.

Between calls nothing polls the channel, so a connection that broke meanwhile is only noticed by the
next call, which fails and may have counted. A call that counts therefore begins with a health check
if the channel was idle, unless the coordinator knows for certain which attempts have counted: with
a durable journal it does. (The asyncio channel is always polled.)

Nor does a channel without a connection get one while nothing polls it: its attempts end unnoticed,
and calls that do not wait for a connection fail at once, however well the coordinator is by then.
So after a failure without a word of the coordinator, the next call opens a new channel, and polls
it until it has connected or not.
"""

from __future__ import annotations

import os
import random
import threading
import time
from functools import partial
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty

from rallypoint.base.names import LOOK_UP_S_MAX, Unresolved
from rallypoint.client.attempts import CHECK, Attempts, Call, Method, Request, Response
from rallypoint.client.calls import workers
from rallypoint.client.channel import GREET_S_MAX, Connections, Line, Stream
from rallypoint.client.errors import ClientClosed
from rallypoint.client.failures import Failure, Unresolvable, read_failure, to_error
from rallypoint.wire.access import Access
from rallypoint.wire.coordinators import Coordinators
from rallypoint.wire.credentials import Credentials, Metadata
from rallypoint.wire.resolved import resolve

IDLE_S = 0.005
"""A connection that has answered since then is taken for alive."""
BEGIN_S_MAX = 0.05
"""How long a report may wait for the address of a name; the look-up still runs for the next one."""
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Transport:
    """A channel to each coordinator that was called."""

    def __init__(
        self, target: str, token: str, limit_s: float, access: Access | None = None
    ) -> None:
        """Connect at the first call.

        Args:
            target: host:port of the coordinator, or of several with commas in between.
            token: of the worker; empty: none.
            limit_s: longest call, and longest outage of a stream, unless the caller says otherwise.
            access: how to prove who the client is; None: as the environment says.

        Raises:
            ValueError: one of several is not `host[:port]`, or a file of the access is of no use.
        """
        self._pid = os.getpid()
        self._connections: Connections[grpc.Channel] = Connections(
            target, token, access, Credentials.open_channel, partial(close_in, self._pid)
        )
        self.targets = self._connections.targets
        """In the order in which the next call tries them."""
        self.limit_s = limit_s
        self._closed = threading.Event()
        self._answered: dict[str, float] = {}
        """When the latest answer of each coordinator came."""

    def close(self) -> None:
        """End all calls."""
        self._closed.set()
        for channel in self._connections.channels():
            close_in(self._pid, channel)

    def run(self, call: Call[Request, Response], limit_s: float | None = None) -> Response:
        """Return the answer to a call, after as many attempts as it takes.

        Raises:
            RallypointError: when it fails for good.
        """
        limit_s = self.limit_s if limit_s is None else limit_s
        began_s, target = time.monotonic(), self.targets[0]
        if self._connections.is_new(target):
            self._greet(target, limit_s)
        if call.mark is not None and not call.is_exact:
            if time.monotonic() - self._answered.get(self.targets[0], -IDLE_S) > IDLE_S:
                self._attempt(Call(CHECK, Empty()), limit_s, began_s)
        return self._attempt(call, limit_s, began_s)

    def _greet(self, target: str, limit_s: float) -> None:
        """Learn whether TLS keeps this client from a coordinator that has never answered.

        Raises:
            HandshakeFailed: it does.
        """
        line, timeout_s = None, min(GREET_S_MAX, limit_s / 2)
        try:
            line = self._find(target)
            line.method(CHECK)(Empty(), timeout=timeout_s, metadata=self._connections.metadata())
        except grpc.RpcError as error:
            failure = self.read(error, target, line)
            if failure.is_final:
                raise to_error(failure) from None
        else:
            self.reached(target)

    def reached(self, target: str) -> None:
        """Note an answer."""
        self._answered[target] = time.monotonic()
        self._connections.reached(target)

    def _attempt(self, call: Call[Request, Response], limit_s: float, began_s: float) -> Response:
        attempts = Attempts(call, self.targets, limit_s, time.monotonic, random.uniform, began_s)
        while True:
            timeout_s, target = attempts.prepare(), attempts.backoff.target
            line, metadata = None, self._connections.metadata()
            try:
                line = self._find(target)
                # With one coordinator the attempt begins when there is a connection. So one that
                # fails may have counted. With several, a connection that fails leads to the next.
                response: Response = line.method(call.method)(
                    call.request,
                    timeout=timeout_s,
                    metadata=metadata,
                    wait_for_ready=self._connections.waits_for_connection(target),
                )
            except grpc.RpcError as error:
                failure = self.read(error, target, line)
            else:
                self.reached(target)
                return attempts.succeed(response)
            if self.is_renewed(failure, metadata):
                continue
            try:
                pause_s = attempts.fail(failure)  # an error from here shows nothing of gRPC
            finally:
                self.targets = attempts.backoff.order
            self.pause(pause_s)

    def begin(
        self, call: Call[Request, Response], timeout_s: float, *, is_last: bool = False
    ) -> Any:
        """Make one attempt without waiting for it; return a grpc.Future.

        If it fails, the next call tries another coordinator. The last one before the interpreter
        ends is waited for: gRPC runs the others in a thread, and Python 3.12 starts none then.
        """
        coordinators = Coordinators(self.targets)
        try:
            line = self._find(coordinators.target, BEGIN_S_MAX)
        except Unresolvable as error:
            return error
        method, metadata = line.method(call.method), self._connections.metadata()
        if is_last:
            try:
                _, future = method.with_call(call.request, timeout=timeout_s, metadata=metadata)
            except grpc.RpcError as error:
                future = error  # which is a future, too
        else:
            future = method.future(call.request, timeout=timeout_s, metadata=metadata)

        def look(ended: Any, _line: Line[grpc.Channel] = line) -> None:
            if ended.code() in _AWAY:
                self._connections.drop_if_lost(read_failure(ended), coordinators.target, _line)
                coordinators.failed()
                self.targets = coordinators.order

        future.add_done_callback(look)
        return future

    def open(
        self, target: str, method: Method[Request, Response], request: Request
    ) -> Stream[grpc.Channel]:
        """Return a new stream of answers."""
        line, metadata = self._find(target), self._connections.metadata()
        call = line.method(method, is_stream=True)(request, metadata=metadata)
        return Stream(line, target, metadata, call)

    def receive(self, stream: Stream[grpc.Channel]) -> Any:
        """Return the next answer; None: the stream has ended."""
        return next(stream.call, None)

    def is_renewed(self, failure: Failure, metadata: Metadata) -> bool:
        """Return whether a call was refused that had an old token."""
        return self._connections.has_newer(failure, metadata)

    def read(self, error: grpc.RpcError, target: str, line: Line[grpc.Channel] | None) -> Failure:
        """Return how a call failed.

        Raises:
            ClientClosed: because this client was closed.
        """
        if self._closed.is_set():
            raise ClientClosed("the client was closed") from None
        failure = self._connections.read(error, target)
        if line is not None:
            self._connections.drop_if_lost(failure, target, line)
        if self._connections.is_unclear(failure, target):
            failure = self._connections.look_into(failure, target)
        return failure

    def pause(self, pause_s: float) -> None:
        """Wait before another attempt.

        Raises:
            ClientClosed: meanwhile.
        """
        if self._closed.wait(pause_s):
            raise ClientClosed("the client was closed")

    def _find(self, target: str, limit_s: float = LOOK_UP_S_MAX) -> Line[grpc.Channel]:
        if self._pid != os.getpid():
            raise ClientClosed("this process was forked from the one that made the client")
        if self._closed.is_set():
            raise ClientClosed("the client was closed")
        self._connections.look()
        line = self._connections.find(target)
        if line is None:
            try:
                line = self._connections.open(resolve(target, limit_s))
            except Unresolved as error:
                raise Unresolvable(error) from None
        return line


def close_in(pid: int, channel: grpc.Channel) -> None:
    """Close a channel of this process; a child that was forked has none of gRPC's threads."""
    if pid == os.getpid():
        channel.close()


class Reports:
    """The part of the blocking client that the asyncio one needs not."""

    _transport: Transport

    def begin_report(
        self,
        job_id: str,
        step: int,
        timeout_s: float,
        *,
        step_ago_ms: int = 0,
        is_last: bool = False,
    ) -> Any:
        """Report a step in one attempt; return it as a grpc.Future.

        The last one has ended when this returns.
        """
        call = workers.report_progress(job_id, step, step_ago_ms=step_ago_ms)
        return self._transport.begin(call, timeout_s, is_last=is_last)
