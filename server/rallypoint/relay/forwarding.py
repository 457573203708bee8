"""Passes every other call on to the coordinator, unchanged: those of workers, tools and operators.

A call is passed on as a stream of bytes in both directions, whatever its kind: that is the same on
the wire. It keeps its deadline, its metadata and its status with all details. The token in the
metadata is the caller's own. The relay adds none, but the caller's address: the coordinator counts
calls by host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from rallypoint.base.log import get_logger, new_incident
from rallypoint.relay.sessions import Sessions
from rallypoint.relay.uplink import RELAY
from rallypoint.relay.uplinks import Uplinks
from rallypoint.wire.channel import client_options
from rallypoint.wire.connecting import Unreachable, find_way, may_have_moved
from rallypoint.wire.credentials import RELAYED_KEY, RELAYED_PEER_KEY, Credentials

log = get_logger()

SESSION = "/rallypoint.v1.AgentService/Session"
WRITE_S_MAX = 30.0
"""Longest write to a client that does not read, as at the coordinator."""
_DROPPED = frozenset({"user-agent", "content-type", "te", RELAYED_PEER_KEY})
_EOF: object = grpc.aio.EOF
_MARK = ((RELAYED_KEY, "1"),)
"""Tells a client that looks for what is wrong that it asks a relay."""
Context = grpc.aio.ServicerContext[bytes, bytes]
CANCEL_S_MAX = 1.0
"""gRPC cancels the call of a peer that has gone, but a write may fail just before."""
Serve = Callable[[Any, Context], Awaitable[None]]


class Calls(grpc.GenericRpcHandler):
    """Handles every method but those of the relay's own health."""

    def __init__(self, uplinks: Uplinks, sessions: Sessions, credentials: Credentials) -> None:
        """Begin without calls.

        Args:
            uplinks: know the coordinator that calls are passed on to.
            sessions: serve agents.
            credentials: for connections; their token is not used.
        """
        self._uplinks = uplinks
        self._sessions = sessions
        self._credentials = credentials
        self._channel: grpc.aio.Channel | None = None
        self._key: tuple[str, int] = ("", 0)
        """Address and version of the certificates of the channel."""
        self._old: list[grpc.aio.Channel] = []
        """Channels of calls that may still be in progress."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a method; None: a relay does not serve it."""
        method = handler_call_details.method
        if method == RELAY:
            return None  # relays go to a coordinator, not to another relay
        serve: Any = self._sessions.serve if method == SESSION else self._to_handler(method)
        return grpc.stream_stream_rpc_method_handler(rooted(serve))

    def _to_handler(self, method: str) -> Any:
        async def handle(_: object, context: Context) -> None:
            await self._pass_on(method, context)

        return handle

    async def _pass_on(self, method: str, context: Context) -> None:
        target = await self._uplinks.at_home()
        if not target:
            text = "the relay reaches no coordinator"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text, _MARK)
        try:
            channel = await self._open(target)
        except Unreachable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the relay: {error}", _MARK)
        make: Any = channel.stream_stream(method)
        call = make(timeout=context.time_remaining(), metadata=_to_metadata(context))
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(_read(call, context))
                try:
                    is_read = await _write(call, context)
                finally:
                    reader.cancel()
        finally:
            call.cancel()
        if not is_read:
            text = f"an answer was not read within {WRITE_S_MAX:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
        code, trailing = await call.code(), (*(await call.trailing_metadata() or ()), *_MARK)
        if code is not grpc.StatusCode.OK:
            await context.abort(code, await call.details() or "", trailing)
        context.set_trailing_metadata(trailing)

    async def _open(self, target: str) -> grpc.aio.Channel:
        """Return the channel to a coordinator, with the certificates as they are now."""
        key = target, self._credentials.version
        if self._channel is None or key != self._key or may_have_moved(self._channel, target):
            at = await find_way(target)
            old, self._channel = self._channel, None
            self._channel = self._credentials.open_aio_channel(at, client_options())
            self._key = key
            if old is not None:
                self._old.append(old)
            if len(self._old) > 1:  # its calls have had a whole life of another channel to end
                await self._old.pop(0).close()
        return self._channel

    async def close(self) -> None:
        """Close all channels."""
        for channel in (*self._old, *(() if self._channel is None else (self._channel,))):
            await channel.close()


def _to_metadata(context: Context) -> list[tuple[str, str | bytes]]:
    kept = [
        (key, value)
        for key, value in context.invocation_metadata() or ()
        if key not in _DROPPED and not key.startswith(("grpc-", ":"))
    ]
    return [*kept, (RELAYED_PEER_KEY, context.peer())]


async def _read(call: Any, context: Context) -> None:
    """Pass on what the client sends."""
    try:
        while (message := await context.read()) is not _EOF:
            await call.write(message)
        await call.done_writing()
    except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
        return  # one of the two calls has ended; the status says how


async def _write(call: Any, context: Context) -> bool:
    """Pass on what the coordinator answers; return whether the client reads it in time."""
    try:
        while (message := await call.read()) is not _EOF:
            async with asyncio.timeout(WRITE_S_MAX):
                await context.write(message)
    except grpc.aio.AioRpcError:
        pass  # its status is passed on
    except TimeoutError:
        return False
    return True


def rooted(serve: Serve) -> Serve:
    """Return a handler whose bugs end one call, with a line in the log and without private text."""

    async def handle(requests: Any, context: Context) -> None:
        try:
            await serve(requests, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # the root of the call
            if context.done():
                return  # a status was sent: reads and writes fail then
            if _is_of_the_peer(error):
                await asyncio.sleep(CANCEL_S_MAX)
                return
            incident = new_incident()
            log.error("call_failed", incident=incident, exc_info=error)
            text = f"the relay has a bug: see incident {incident} in its log"
            await context.abort(grpc.StatusCode.INTERNAL, text)

    return handle


def _is_of_the_peer(error: Exception) -> bool:
    """Return whether an exception only says that the peer has gone."""
    if isinstance(error, ExceptionGroup):
        return error.split(grpc.aio.InternalError)[1] is None
    return isinstance(error, grpc.aio.InternalError)
