"""A coordinator for a node that is alone: it runs in the agent's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rallypoint.agent.machine.address import find_loopback
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger
from rallypoint.wire.access import PLAIN, Access
from rallypoint.wire.local_token import KeptToken, draw_token, keep_token

log = get_logger()


KEEP_S_MAX = 0.5
"""How long a start waits until the token is kept, and the end until it is removed: the file server
of a home folder may hang."""
UNKNOWN = "commands about this job are refused; set XDG_STATE_HOME to a folder of your own"
"""What follows when other programs of this user do not learn the token."""


class NoCoordinator(Exception):
    """The built-in coordinator cannot listen: one line that says why, and what to do."""


@asynccontextmanager
async def reaching_coordinator(
    address: str | None, access: Access = PLAIN
) -> AsyncIterator[tuple[str, Access, asyncio.Future[None] | None]]:
    """Yield the address of the given or a built-in coordinator, how to prove oneself to it, and the
    failure of a built-in one.

    The future gets the exception when a built-in coordinator cannot continue.

    Args:
        address: host:port; None: a coordinator runs while the context is open. It has a token of
            its own, which programs of the same user find.
        access: for the given coordinator.

    Raises:
        NoCoordinator: the built-in one cannot listen.
    """
    if address is not None:
        yield address, access, None
        return
    from rallypoint.server.access.protecting import ProtectionSettings
    from rallypoint.server.core.model.spec import Timing
    from rallypoint.server.serve import CannotListen, Settings, serving

    token, host = draw_token(), find_loopback()
    protection = ProtectionSettings(token=token, audits=False)
    settings = Settings(host, 0, Timing(), standalone=True, protection=protection)
    shown = f"[{host}]" if ":" in host else host
    try:
        async with serving(settings) as running, _keeping(running.port, token, host):
            yield f"{shown}:{running.port}", Access(token=token), running.failed
    except CannotListen as error:
        text = f"the built-in coordinator {error}: check the loopback interface: ip address show lo"
        raise NoCoordinator(text) from error


@asynccontextmanager
async def _keeping(port: int, token: str, host: str) -> AsyncIterator[None]:
    """Keep a token for other programs of this user while the context is open."""
    files = FileThread("token")
    kept = None
    try:
        kept = files.begin(lambda: keep_token(port, token, host))
        async with asyncio.timeout(KEEP_S_MAX):
            await asyncio.shield(kept.future)
    except TimeoutError:
        log.warning("token_not_kept", why="its file system does not answer", effect=UNKNOWN)
    except OSError as error:
        log.warning("token_not_kept", why=error.strerror or str(error), effect=UNKNOWN)
    try:
        yield
    finally:
        if kept is not None:
            files.drop(kept, KeptToken.remove)
            files.flush(KEEP_S_MAX)
