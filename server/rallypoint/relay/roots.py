"""The root of every call: a bug ends one call, with a line in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from rallypoint.base.log import get_logger, new_incident

log = get_logger()

Context = grpc.aio.ServicerContext[bytes, bytes]
CANCEL_S_MAX = 1.0
"""gRPC cancels the call of a peer that has gone, but a write may fail just before."""
Serve = Callable[[Any, Context], Awaitable[None]]


def rooted(serve: Serve) -> Serve:
    """Return a handler whose exceptions are logged, and become a status without private text."""

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
