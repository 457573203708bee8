"""A coordinator for a node that is alone: it runs in the agent's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rallypoint.agent.agent import Agent
from rallypoint.base.exit_codes import EXIT_FAILED
from rallypoint.base.log import get_logger

log = get_logger()


@asynccontextmanager
async def reaching_coordinator(
    address: str | None,
) -> AsyncIterator[tuple[str, asyncio.Future[None]]]:
    """Yield the address of the given or a built-in coordinator, and the failure of a built-in one.

    The future gets the exception when a built-in coordinator cannot continue.

    Args:
        address: host:port; None: a coordinator runs while the context is open.
    """
    if address is not None:
        yield address, asyncio.get_running_loop().create_future()
        return
    from rallypoint.server.core.model.spec import Timing
    from rallypoint.server.serve import Settings, serving

    async with serving(Settings("127.0.0.1", 0, Timing(), standalone=True)) as running:
        yield f"127.0.0.1:{running.port}", running.failed


async def end_with(failed: asyncio.Future[None], agent: Agent) -> None:
    """End the agent when its built-in coordinator fails: no other one will ever serve it."""
    await asyncio.wait((failed,))
    error = failed.exception()
    log.error("coordinator_failed", exc_info=error)
    agent.on_dismissed(EXIT_FAILED, f"the built-in coordinator failed: {error!r}")
