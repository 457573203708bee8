"""How calls to clients end whose answers come from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rallypoint.base.log import get_logger
from rallypoint.server.rpc.convert.checks import InvalidMessage
from rallypoint.server.rpc.errors import stalled_status
from rallypoint.server.rpc.guards.lines import may_log
from rallypoint.server.rpc.routing.forwarding import CallFailed
from rallypoint.server.rpc.routing.marks import Context
from rallypoint.server.rpc.status import abort_with, invalid_status

log = get_logger()

STALL_S_MAX = 30.0
"""Longest time that a client may take to read a forwarded answer; owners have the same limit."""


class _Stalled(Exception):
    """The client has not read an answer in time."""


@asynccontextmanager
async def ending(context: Context) -> AsyncIterator[None]:
    """End the call with the status that an exception of the body means."""
    try:
        yield
    except CallFailed as failed:
        await context.abort(failed.code, failed.text, failed.metadata)
    except InvalidMessage as invalid:
        await abort_with(context, invalid_status(invalid.path, invalid.problem))
    except _Stalled:
        if may_log():
            log.warning("watcher_stalled", limit_s=STALL_S_MAX)
        await abort_with(context, stalled_status(STALL_S_MAX))


async def write_in_time(context: Context, answer: Any) -> None:
    """Write an answer; `ending` ends the call when the client does not read it in time."""
    try:
        async with asyncio.timeout(STALL_S_MAX):
            await context.write(answer)
    except TimeoutError:
        raise _Stalled from None
