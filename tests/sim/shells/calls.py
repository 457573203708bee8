"""gRPC on virtual time: both sides of a call, as far as agents and the coordinator use it.

The rules are those of grpc.aio. At the client a read at the end raises the status unless that
is OK; a cancelled read or write cancels the call; a write after the end of the call raises
InvalidStateError. One that the end interrupts seems to have succeeded, or raises the status if that
arrives at the same moment, or INTERNAL, which may take the place of the status. At the server a
read returns EOF when the peer is gone, a write then raises InternalError, and the task of the
handler is cancelled, but the call is not `done`: it is when a status was sent. A handler that
returns ends the call with OK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has the error of a write

from sim.shells.loop import Loop
from sim.shells.stream import CANCELLED, OK, RESET, Status, Stream

SESSION = "/rallypoint.v1.AgentService/Session"
GET_JOB = "/rallypoint.v1.JobService/GetJob"
DRAIN = "/rallypoint.v1.NodeService/DrainNode"
READY = grpc.ChannelConnectivity.READY
CONNECTING = grpc.ChannelConnectivity.CONNECTING
FAILED = grpc.ChannelConnectivity.TRANSIENT_FAILURE
INTERNAL = Status(grpc.StatusCode.INTERNAL, "Internal error from Core")
"""What grpc.aio makes of a write that fails."""


class Network(Protocol):
    """Connects agents to the coordinator."""

    def connect(self, channel: Channel) -> None:
        """Begin to connect; the channel's `settle` learns the result, if there is one."""

    def open(self, channel: Channel) -> Stream:
        """Return the stream of a new call on a connected channel."""


class Channel:
    """Stands for grpc.aio.Channel."""

    def __init__(self, network: Network, target: str) -> None:
        self.target = target
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        self.loop = loop
        self._network = network
        self._state = grpc.ChannelConnectivity.IDLE
        self._changed = asyncio.Event()
        self._calls: list[Call] = []
        self.is_closed = False

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_closed = True
        for call in self._calls:
            call.cancel()

    def settle(self, state: grpc.ChannelConnectivity) -> None:
        """Note the result of connecting."""
        self._state = state
        self._changed.set()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        if self._state is grpc.ChannelConnectivity.IDLE and try_to_connect:
            self._state = CONNECTING
            self._network.connect(self)
        return self._state

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        while self._state is last:
            self._changed.clear()
            await self._changed.wait()

    def stream_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **_: object,
    ) -> Callable[..., Call]:
        def call(metadata: object) -> Call:
            stream = self._network.open(self)
            stream.method = method
            made = Call(stream, request_serializer, response_deserializer)
            self._calls.append(made)
            return made

        return call


class Call:
    """Stands for grpc.aio.StreamStreamCall."""

    def __init__(
        self, stream: Stream, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
    ) -> None:
        self.stream = stream
        self._encode = encode
        self._decode = decode

    @property
    def _is_done(self) -> bool:
        """Whether the status is known: it comes after all messages."""
        status = self.stream.status
        return status is INTERNAL or (status is not None and not self.stream.down.has_unread)

    async def write(self, message: Any) -> None:
        if self._is_done:
            raise asyncio.InvalidStateError("RPC already finished.")
        try:
            is_sent = await self.stream.up.put(self._encode(message))
        except asyncio.CancelledError:
            self.cancel()
            raise
        rng = self.stream.rng
        if is_sent or rng.random() < 0.3:  # the connection had taken it before the end
            return
        if self.stream.status is CANCELLED:
            raise asyncio.CancelledError
        # Else the status arrives afterwards, or while the error is made. What is unread is lost.
        arrives = 1.0 if self.stream.down.has_unread else rng.random()
        if self.stream.status is not None and 0.5 <= arrives < 0.65:
            raise _error(self.stream.status)
        if arrives < 0.5 or self.stream.down.has_unread:
            self.stream.status = INTERNAL
        raise _error(INTERNAL)

    async def read(self) -> Any:
        try:
            raw = None if self._is_done else await self.stream.down.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if raw is None:
            status = await self.stream.end()
            if status is CANCELLED:
                raise asyncio.CancelledError
            if status.code is not grpc.StatusCode.OK:
                raise _error(status)
            return grpc.aio.EOF
        return self._decode(raw)

    async def code(self) -> grpc.StatusCode:
        return (await self.stream.end()).code

    async def details(self) -> str:
        return (await self.stream.end()).details

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*(await self.stream.end()).trailing)

    def cancel(self) -> bool:
        if self._is_done:
            return False
        self.stream.cancel()
        return True


def _error(status: Status) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata(*status.trailing)
    return grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), trailing, details=status.details)


class Server:
    """Stands for grpc.aio.Server."""

    def __init__(self, loop: Loop, interceptors: Sequence[Any]) -> None:
        self.loop = loop
        self._interceptors = interceptors
        self._handlers: dict[str, Any] = {}
        self._generic: list[Any] = []
        """Find the handlers of all other methods."""
        self._calls: dict[asyncio.Task[None], Stream | None] = {}
        self.is_listening = False
        self.bugs: list[str] = []
        """Exceptions that reached gRPC although the peer was there."""

    # --- what `serving` calls ---

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        for name, handler in handlers.items():
            self._handlers[f"/{service}/{name}"] = handler

    def add_insecure_port(self, address: str) -> int:
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        self.is_listening = True

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls; cancel the others after the grace."""
        self.is_listening = False
        tasks = tuple(self._calls)
        if tasks:
            await asyncio.wait(tasks, timeout=grace or 0)
            for task, stream in tuple(self._calls.items()):
                if stream is not None:
                    stream.end_client(RESET)
                    stream.end_server()
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- calls ---

    async def _find(self, method: str) -> Any:
        async def found(details: Any) -> Any:
            if method in self._handlers:
                return self._handlers[method]
            handlers = (one.service(details) for one in self._generic)
            return next(one for one in handlers if one is not None)

        for interceptor in self._interceptors:
            return await interceptor.intercept_service(found, _Details(method))
        return await found(_Details(method))

    def accept(self, stream: Stream, peer: str) -> None:
        """Begin to serve a stream of an agent."""
        if not self.is_listening:
            stream.cut(client_s=0.001, server_s=None)
            stream.is_over_at_server = True
            return
        self.loop.call_soon(self._begin, stream, peer)

    def _begin(self, stream: Stream, peer: str) -> None:
        if stream.is_over_at_server:
            return
        if not self.is_listening:  # it was stopped in between
            stream.is_over_at_server = True
            stream.cut(client_s=0.001, server_s=None)
            return
        task = self.loop.create_task(self._serve(stream, peer))
        stream.server_task = task
        self._calls[task] = stream
        task.add_done_callback(lambda ended: self._calls.pop(ended, None))

    async def _serve(self, stream: Stream, peer: str) -> None:
        handler = await self._find(stream.method)
        context = Context(stream, handler, peer)
        try:
            await handler.stream_stream(None, context)
        except grpc.aio.AbortError:
            return
        except asyncio.CancelledError:
            context.finish(Status(grpc.StatusCode.UNAVAILABLE, "Cancelled on the server side"))
            raise
        except Exception as error:  # noqa: BLE001  # gRPC's own root of a call
            if not stream.is_over_at_server and not context.done():
                self.bugs.append(repr(error))
            text = f"Unexpected {type(error)}: {error}"
            context.finish(Status(grpc.StatusCode.UNKNOWN, text))
            return
        else:
            context.finish(OK)
        finally:
            context.call_back()

    def ask(self, method: str, request: bytes, answered: Callable[[bytes | None], None]) -> None:
        """Make a call with one request; `answered` gets the answer, or None for a refusal."""

        async def call() -> None:
            handler = await self._find(method)
            context = Context(None, handler, "operator", request)
            try:
                answered(await handler.stream_unary(None, context))
            except grpc.aio.AbortError:
                answered(None)
            finally:
                context.finish(OK)
                context.call_back()

        def begin() -> None:
            task = self.loop.create_task(call())
            self._calls[task] = None
            task.add_done_callback(lambda ended: self._calls.pop(ended, None))

        if self.is_listening:
            self.loop.call_soon(begin)


class _Details:
    """Stands for grpc.HandlerCallDetails."""

    invocation_metadata = ()

    def __init__(self, method: str) -> None:
        self.method = method


class Context:
    """Stands for grpc.aio.ServicerContext."""

    def __init__(
        self, stream: Stream | None, handler: Any, peer: str, request: bytes = b""
    ) -> None:
        self._stream = stream
        self._request = request
        """That the call without a stream has sent."""
        self._decode = handler.request_deserializer or bytes
        self._encode = handler.response_serializer or bytes
        self._peer = peer
        self._is_finished = False
        self._aborted: grpc.aio.AbortError | None = None
        self._done: list[Callable[[Context], None]] = []
        """What is called when the handler has ended."""

    def add_done_callback(self, callback: Callable[[Context], None]) -> None:
        self._done.append(callback)

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def done(self) -> bool:
        return self._is_finished

    def call_back(self) -> None:
        """Call what waits for the end."""
        for callback in self._done:
            callback(self)

    def _check(self) -> None:
        if self._aborted is not None:
            raise self._aborted
        if self._is_finished:
            raise grpc.aio.UsageError("RPC already finished.")

    async def read(self) -> Any:
        self._check()
        if self._stream is None:
            return self._request
        raw = await self._stream.up.get()
        self._check()
        return grpc.aio.EOF if raw is None else self._decode(raw)

    async def write(self, message: Any) -> None:
        self._check()
        assert self._stream is not None
        if not await self._stream.down.put(self._encode(message)):
            raise cygrpc.ExecuteBatchError("Failed to execute batch")

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> None:
        if self._aborted is not None:
            raise grpc.aio.UsageError("Abort already called!")
        self._check()
        is_gone = self._stream is not None and self._stream.is_over_at_server
        self.finish(Status(code, details, tuple((key, value) for key, value in trailing)))
        self._aborted = grpc.aio.AbortError("Locally aborted.")
        raise cygrpc.ExecuteBatchError("Failed to execute batch") if is_gone else self._aborted

    def finish(self, status: Status) -> None:
        """Send the status after all messages."""
        if self._is_finished:
            return
        self._is_finished = True
        if self._stream is not None and not self._stream.is_over_at_server:
            self._stream.is_over_at_server = True
            self._stream.down.send(status)
            self._stream.up.finish_reads(keeps_arrived=False)
            self._stream.up.cut()
