"""The one place where each call begins and ends: who makes it, and what an exception means.

With a gate, only those are let in who may make the call. Without one, no one is asked.

A bug becomes INTERNAL with the id of its line in the log, and without private text. A message that
cannot be decoded is its sender's fault. When the coordinator has ended, every call is UNAVAILABLE.
A refusal becomes the status that `to_status` knows.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stub
from grpc_status import rpc_status
from msgspec import Struct
from msgspec.structs import replace

from rallypoint.base.log import bind_context, get_logger, new_incident
from rallypoint.server.access.audit import JOB_CHARS_MAX
from rallypoint.server.access.gate import Entry, Gate
from rallypoint.server.access.policy import CLOSED, POLICY
from rallypoint.server.access.usage.callers import as_made
from rallypoint.server.access.usage.garbage import Garbage, forget_frames
from rallypoint.server.access.usage.lines import Lines, bind_caller, may_log
from rallypoint.server.access.usage.peers import Peers, hosts_of
from rallypoint.server.access.usage.requests import (
    Requests,
    TooLarge,
    TooMany,
    Unread,
    fields_max,
    has_more_fields,
    measure,
)
from rallypoint.server.access.usage.rests import RECEIVED, Received, Rests, bind_rest, rest
from rallypoint.server.contract.calls import CallRefused, Context
from rallypoint.server.contract.errors import ended_status, internal_status, to_status
from rallypoint.server.shell.coordinator import CoordinatorEnded
from rallypoint.wire.channel import MESSAGE_BYTES_MAX
from rallypoint.wire.limits import LEAST_REQUEST_BYTES, SERVICES, request_bytes_max

log = get_logger()

_Handler = Any
"""grpc.RpcMethodHandler: its annotations are those of handlers that are not asynchronous."""


_Enter = Callable[[str, Context], AbstractContextManager[Entry | None]]
"""Lets a call in, by its method and context."""
_Find = Callable[[str, Context], Context]
"""Returns the context of a call, whose peer has made it, also through a relay."""
_ANYONE = nullcontext()
_Answer = TypeVar("_Answer")
_BYTES_MAX = {
    f"/{service.full_name}/{method.name}": MESSAGE_BYTES_MAX
    if method.client_streaming
    else request_bytes_max(method.input_type)
    for service in SERVICES
    for method in service.methods
}
"""Bytes that a message of a client may have, by path. The standard services have the least room."""
_FIELDS_MAX = {
    f"/{service.full_name}/{method.name}": fields_max(method.input_type)
    for service in SERVICES
    for method in service.methods
}
"""Fields that a request may have, by path; 0: they are not counted."""


def _staying(entry: Entry | None, context: Context) -> AbstractContextManager[None]:
    return _ANYONE if entry is None else entry.staying(context)


def _let_in(method: str, context: Context) -> AbstractContextManager[None]:
    return _ANYONE


class Interceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of the server, once."""

    def __init__(self, gate: Gate | None = None, peers: Peers | None = None) -> None:
        """Start without handlers.

        Args:
            gate: lets calls in; None: each of them.
            peers: know the relays; None: there are none.
        """
        self._wrapped: dict[str, _Handler] = {}
        self._garbage = Garbage()
        peers = peers or Peers()
        self._any = _Method(
            path="",
            enter=_let_in if gate is None else gate.entering,
            find=partial(as_made, peers),
            requests=Requests(),
            unread=Unread(),
            garbage=self._garbage,
            lines=peers.lines,
            rests=Rests(),
        )

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Return the wrapped handler of a method, or None when there is no such method."""
        method = handler_call_details.method
        self._garbage.note_left(_size_of(handler_call_details.invocation_metadata))
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            wrapped = self._wrapped[method] = _wrap(replace(self._any, path=method), handler)
        return wrapped


class _Method(Struct, frozen=True):
    """A method, and what each call of it goes through."""

    path: str
    enter: _Enter
    find: _Find
    requests: Requests
    unread: Unread
    garbage: Garbage
    lines: Lines
    rests: Rests

    @property
    def bytes_max(self) -> int:
        """Bytes that a message of its clients may have."""
        return _BYTES_MAX.get(self.path, LEAST_REQUEST_BYTES)

    async def root(
        self,
        context: Context,
        serve: Callable[[Context, Entry | None], Awaitable[_Answer]],
        *,
        is_stream: bool,
    ) -> _Answer:
        """Serve a call; end it with the status that an exception means.

        gRPC's state of an ended call has its exception, which has the frames it went through. If
        one of those has the request, or that state, all of it stays until the garbage collector
        runs. So the frames are forgotten, and those of the end itself let go of what they have.
        The status is sent outside of the `except`, or its exception would have the one before.
        """
        context = self.find(self.path, context)
        _bind_call(self.path, context)
        hosts, received = hosts_of(context.peer()), Received()
        bind_caller(self.lines, hosts)
        bind_rest(self.rests, hosts[0], received)
        RECEIVED.set(received)
        try:
            with self.enter(self.path, context) as entry:
                with _staying(entry, context) if is_stream else _ANYONE:
                    return await serve(context, entry)
        except Exception as error:  # noqa: BLE001  # the root of the call
            end = _to_end(error, context, self.path)
            forget_frames(error)
        received.is_held = False
        self.garbage.note_left(received.size)
        ending = _end(context, end)
        del context, serve, end
        await ending
        raise AssertionError("it is ended")


def _wrap(method: _Method, handler: _Handler) -> _Handler:
    """Return the wrapped handler; each call has a stream of requests, so that it begins at once."""
    most = method.bytes_max
    if handler.unary_unary is not None:
        # It gets and returns bytes, so that decoding and encoding count as parts of the call.
        return grpc.stream_unary_rpc_method_handler(_wrap_unary(method, handler))
    if handler.unary_stream is not None:
        decode, receive = handler.request_deserializer, method.requests.receive

        async def read(context: Context) -> Any:
            return decode(await receive(context, most))

        return grpc.stream_stream_rpc_method_handler(
            _wrap_streaming(method, handler.unary_stream, read),
            response_serializer=_encode_unless_done(handler.response_serializer),
        )
    assert handler.stream_stream is not None, f"{method.path} has another kind of call"
    return grpc.stream_stream_rpc_method_handler(
        _wrap_streaming(method, handler.stream_stream, None),
        request_deserializer=_measured(handler.request_deserializer, most),
        response_serializer=handler.response_serializer,
    )


def _wrap_unary(method: _Method, handler: _Handler) -> Callable[[Any, Context], Awaitable[bytes]]:
    serve, decode, most = handler.unary_unary, handler.request_deserializer, method.bytes_max
    assert serve is not None and decode is not None and handler.response_serializer is not None
    encode = _encode_unless_done(handler.response_serializer)
    fields = _FIELDS_MAX.get(method.path, 0)
    is_read = method.path.rpartition("/")[2].startswith(("Get", "List"))

    async def answer(context: Context, entry: Entry | None) -> bytes:
        method.unread.check(context)
        message = await method.requests.receive(context, most)
        if fields and has_more_fields(message, fields):
            raise TooMany(fields)
        request = decode(message)
        del message  # of a call that waits, the request is enough
        _bind_request(request, entry)
        serving = serve(request, context)
        del request  # a handler that waits may let go of it
        answered = encode(await serving)
        if is_read:  # again, for calls that have waited for the same answer
            method.unread.check(context)
        method.unread.note(context, len(answered))
        return answered

    async def call(stream: Any, context: Context) -> bytes:
        serving = method.root(context, answer, is_stream=False)
        del stream, context  # see `root`
        return await serving

    return call


def _wrap_streaming(
    method: _Method,
    serve: Callable[[Any, Context], Any],
    read: Callable[[Context], Awaitable[Any]] | None,
) -> Callable[[Any, Context], Awaitable[None]]:
    """Return the wrapped handler of a call with a stream of answers.

    Args:
        method: of the call.
        serve: an asynchronous generator, or a coroutine function that writes its answers.
        read: returns the one request; None for a stream of them.
    """

    async def call(stream: Any, context: Context) -> None:
        serving = method.root(context, partial(answer, stream), is_stream=True)
        del stream, context  # see `root`
        await serving

    async def answer(stream: Any, context: Context, entry: Entry | None) -> None:
        request = stream
        if read is not None:
            request = await read(context)
            _bind_request(request, entry)
        answers = serve(request, context)
        if inspect.isasyncgen(answers):
            await _write_all(answers, context)
        else:
            await answers

    return call


def _measured(decode: Callable[[bytes], Any], most: int) -> Callable[[bytes], Any]:
    """Return what decodes the messages of a stream, if they have so few bytes."""

    def decode_measured(message: bytes) -> Any:
        measure(message, most)
        return decode(message)

    return decode_measured


def _encode_unless_done(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Let bytes pass: an answer that goes to many callers is encoded once."""
    return lambda answer: answer if isinstance(answer, bytes) else encode(answer)


async def _write_all(answers: AsyncIterator[Any], context: Context) -> None:
    async with aclosing(answers):  # type: ignore[type-var]  # an asynchronous generator
        async for answer in answers:
            await context.write(answer)


def _size_of(metadata: Iterable[tuple[str, str | bytes]]) -> int:
    """Return the bytes of a call's metadata."""
    return sum(len(key) + len(value) for key, value in metadata)


def _bind_call(method: str, context: Context) -> None:
    bind_context(method=method.rpartition("/")[2], peer=unquote(context.peer()))


def _bind_request(request: Message, entry: Entry | None) -> None:
    """Bind the job of a call to the log, and check that its caller is allowed it."""
    job_id = getattr(request, "job_id", "")
    if job_id:
        bind_context(job_id=job_id[:JOB_CHARS_MAX])
    if entry is not None:
        entry.require_job(job_id)


def _to_end(error: Exception, context: Context, method: str) -> Status | Exception:
    """Return the status that an exception means, or the exception that gRPC has to get."""
    if isinstance(error, grpc.aio.AbortError | CallRefused):
        return error
    causes = tuple(_leaves(error))
    if any(isinstance(cause, CoordinatorEnded) for cause in causes):
        return ended_status()  # whatever went wrong beside it
    statuses = [status for status in map(to_status, causes) if status is not None]
    if len(statuses) == len(causes):
        status = statuses[0]
        if any(isinstance(cause, TooLarge | DecodeError) for cause in causes):
            _note_rejected(method, status)
        return status
    if has_ended(causes, context):
        return error  # gRPC expects this and sends nothing
    incident = new_incident()
    log.error("call_failed", incident=incident, exc_info=error)
    return internal_status(incident)


def _note_rejected(method: str, status: Status) -> None:
    """Log a message that was not decoded. What anyone may call must not let anyone fill the log."""
    path, _, problem = status.message.partition(": ")
    if POLICY.get(method, CLOSED).is_open:
        log.debug("message_rejected", path=path, problem=problem)
    elif may_log():
        log.warning("message_rejected", path=path, problem=problem)


async def _end(context: Context, end: Status | Exception) -> NoReturn:
    """End a call. A refusal of many may have to wait, unless another coordinator has made it."""
    is_forwarded = isinstance(end, CallRefused) and end.is_forwarded
    if isinstance(end, CallRefused):
        end = end.status
    try:
        if isinstance(end, Status):
            packed = rpc_status.to_status(end)
            if packed.code in _RESTING and not is_forwarded:
                await rest()
            await context.abort(packed.code, packed.details, packed.trailing_metadata)
    except grpc.aio.AbortError as error:
        forget_frames(error)
        end = error
    if not context.done():  # the peer has gone
        await asyncio.sleep(CANCEL_S_MAX)
    try:
        raise end
    finally:
        del context, end


_RESTING = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
"""The statuses of calls that do not succeed when they are made again at once."""
CANCEL_S_MAX = 1.0
"""gRPC cancels the call of a peer that has gone, but a write may fail just before."""
_AFTER_THE_END = (grpc.aio.UsageError, grpc.aio.InternalError, cygrpc.ExecuteBatchError)
"""Raised by reads and writes on a call that has ended; all but the first also when the peer has
gone. Then the call is not `done`: no status was sent."""


def has_ended(causes: Sequence[BaseException], context: Context) -> bool:
    """Return whether exceptions only say that a call has ended, or that its peer has gone."""
    is_over = context.done() or any(isinstance(cause, grpc.aio.InternalError) for cause in causes)
    return is_over and all(isinstance(cause, _AFTER_THE_END) for cause in causes)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, or every exception of a group, however nested."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
