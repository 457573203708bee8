"""The one place where each call begins and ends: who makes it, and what an exception means.

With a gate, only those are let in who may make the call. Without one, no one is asked.

A bug becomes INTERNAL with the id of its line in the log, and without private text. A message that
cannot be decoded is its sender's fault. When the coordinator has ended, every call is UNAVAILABLE.
Refusals are no exceptions here: a handler aborts its call with their status.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stub

from rallypoint.base.log import bind_context, get_logger, new_incident
from rallypoint.server.coordinator import CoordinatorEnded
from rallypoint.server.rpc.errors import ended_status, internal_status, limit_status
from rallypoint.server.rpc.guards.access.gate import Entry, Gate
from rallypoint.server.rpc.guards.access.policy import CLOSED, POLICY
from rallypoint.server.rpc.guards.access.refusals import AccessRefused
from rallypoint.server.rpc.guards.callers import as_made
from rallypoint.server.rpc.guards.peers import LimitExceeded, Peers
from rallypoint.server.rpc.guards.requests import Requests
from rallypoint.server.rpc.status import abort_with, invalid_status

log = get_logger()

_Context = grpc.aio.ServicerContext[Any, Any]
_Handler = Any
"""grpc.RpcMethodHandler: its annotations are those of handlers that are not asynchronous."""


_Enter = Callable[[str, _Context], AbstractContextManager[Entry | None]]
"""Lets a call in, by its method and context."""
_Find = Callable[[str, _Context], _Context]
"""Returns the context of a call, whose peer has made it, also through a relay."""
_ANYONE = nullcontext()


def _staying(entry: Entry | None, context: _Context) -> AbstractContextManager[None]:
    return _ANYONE if entry is None else entry.staying(context)


def _let_in(method: str, context: _Context) -> AbstractContextManager[None]:
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
        self._enter: _Enter = _let_in if gate is None else gate.entering
        self._find: _Find = partial(as_made, peers or Peers())
        self._requests = Requests()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Return the wrapped handler of a method, or None when there is no such method."""
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            wrapped = self._wrapped[method] = _wrap(
                method, handler, self._enter, self._find, self._requests
            )
        return wrapped


def _wrap(
    method: str, handler: _Handler, enter: _Enter, find: _Find, requests: Requests
) -> _Handler:
    """Return the wrapped handler; each call has a stream of requests, so that it begins at once."""
    if handler.unary_unary is not None:
        # It gets and returns bytes, so that decoding and encoding count as parts of the call.
        return grpc.stream_unary_rpc_method_handler(
            _wrap_unary(method, handler, enter, find, requests)
        )
    if handler.unary_stream is not None:
        decode, receive = handler.request_deserializer, requests.receive

        async def read(_: Any, context: _Context) -> Any:
            return decode(await receive(context))

        return grpc.stream_stream_rpc_method_handler(
            _wrap_streaming(method, handler.unary_stream, read, enter, find),
            response_serializer=_encode_unless_done(handler.response_serializer),
        )
    assert handler.stream_stream is not None, f"{method} has another kind of call"
    return grpc.stream_stream_rpc_method_handler(
        _wrap_streaming(method, handler.stream_stream, None, enter, find),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _wrap_unary(
    method: str, handler: _Handler, enter: _Enter, find: _Find, requests: Requests
) -> Callable[[Any, _Context], Awaitable[bytes]]:
    serve, decode, encode = (
        handler.unary_unary,
        handler.request_deserializer,
        handler.response_serializer,
    )
    assert serve is not None and decode is not None and encode is not None
    encode_unless_done = _encode_unless_done(encode)

    async def call(_: Any, context: _Context) -> bytes:
        context = find(method, context)
        _bind_call(method, context)
        try:
            with enter(method, context) as entry:
                request = decode(await requests.receive(context))
                _bind_request(request, entry)
                return encode_unless_done(await serve(request, context))
        except Exception as error:  # noqa: BLE001  # the root of the call
            await _fail(error, context, method)

    return call


def _wrap_streaming(
    method: str,
    serve: Callable[[Any, _Context], Any],
    read: Callable[[Any, _Context], Awaitable[Any]] | None,
    enter: _Enter,
    find: _Find,
) -> Callable[[Any, _Context], Awaitable[None]]:
    """Return the wrapped handler of a call with a stream of answers.

    Args:
        method: full name of the method.
        serve: an asynchronous generator, or a coroutine function that writes its answers.
        read: returns the one request; None for a stream of them.
        enter: lets calls in.
        find: finds out who makes them.
    """

    async def call(request: Any, context: _Context) -> None:
        context = find(method, context)
        _bind_call(method, context)
        try:
            with enter(method, context) as entry, _staying(entry, context):
                if read is not None:
                    request = await read(request, context)
                    _bind_request(request, entry)
                answers = serve(request, context)
                if inspect.isasyncgen(answers):
                    await _write_all(answers, context)
                else:
                    await answers
        except Exception as error:  # noqa: BLE001  # the root of the call
            await _fail(error, context, method)

    return call


def _encode_unless_done(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Let bytes pass: an answer that goes to many callers is encoded once."""
    return lambda answer: answer if isinstance(answer, bytes) else encode(answer)


async def _write_all(answers: AsyncIterator[Any], context: _Context) -> None:
    async with aclosing(answers):  # type: ignore[type-var]  # an asynchronous generator
        async for answer in answers:
            await context.write(answer)


def _bind_call(method: str, context: _Context) -> None:
    bind_context(method=method.rpartition("/")[2], peer=unquote(context.peer()))


def _bind_request(request: Message, entry: Entry | None) -> None:
    """Bind the job of a call to the log, and check that its caller is allowed it."""
    job_id = getattr(request, "job_id", "")
    if job_id:
        bind_context(job_id=job_id)
    if entry is not None:
        entry.require_job(job_id)


async def _fail(error: Exception, context: _Context, method: str) -> NoReturn:
    """End a call with the status that an exception means."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, AccessRefused):
        await abort_with(context, error.status)
    if isinstance(error, LimitExceeded):
        await abort_with(context, limit_status(error))
    causes = tuple(_leaves(error))
    if any(isinstance(cause, CoordinatorEnded) for cause in causes):
        await abort_with(context, ended_status())
    if any(isinstance(cause, DecodeError) for cause in causes):
        # What anyone may call must not let anyone fill the log.
        note = log.warning if POLICY.get(method, CLOSED).roles else log.debug
        note("message_rejected", path="message", problem="cannot be decoded")
        await abort_with(context, invalid_status("message", "cannot be decoded"))
    if context.done() and all(isinstance(cause, _AFTER_THE_END) for cause in causes):
        raise error  # the peer has gone; gRPC expects this and sends nothing
    incident = new_incident()
    log.error("call_failed", incident=incident, exc_info=error)
    await abort_with(context, internal_status(incident))


_AFTER_THE_END = (grpc.aio.UsageError, grpc.aio.InternalError, cygrpc.ExecuteBatchError)
"""Raised by reads and writes on a call that has ended."""


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, or every exception of a group, however nested."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
