"""Starts a coordinator: its state, journal, shell and gRPC server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import grpc
from msgspec import Struct
from msgspec.structs import replace

from rallypoint.base.background import Background
from rallypoint.base.log import get_logger
from rallypoint.server.access.interceptor import Interceptor
from rallypoint.server.access.protecting import (
    Protected,
    ProtectionInvalid,
    ProtectionSettings,
    protecting,
)
from rallypoint.server.api.about.standard import HealthService, add_reflection
from rallypoint.server.contract.routes import SERVICE_NAMES
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.journal.interface import Journal, JournalFailed
from rallypoint.server.journal.memory import MemoryJournal
from rallypoint.server.serving.idle import UntilIdle, await_idle
from rallypoint.server.serving.leaving import leave
from rallypoint.server.serving.shard import (
    Shard,
    ShardSettings,
    Sharing,
    add_services,
    open_shard,
    share,
)
from rallypoint.server.shell.coordinator import CoordinatorEnded
from rallypoint.wire.channel import server_options
from rallypoint.wire.last_runs import choose_name
from rallypoint.wire.listening import CannotListen, bind

__all__ = [
    "CannotListen",
    "ProtectionInvalid",
    "Running",
    "Settings",
    "Sharing",
    "serving",
    "sharing",
]

log = get_logger()

SEARCH_MS = 5_000
"""Agents of a shard that has moved may ask two coordinators that do not know the owner yet, with
pauses of up to 2 s, before they find it. On a busy machine they all do so at once."""
STOP_GRACE_S = 0.5
"""How long open calls may take to end when the coordinator stops."""


class Settings(Struct, frozen=True):
    """How a coordinator is started."""

    host: str
    """Address to listen on."""
    port: int
    """Port to listen on; 0: any free one."""
    timing: Timing
    standalone: bool = False
    """It serves only the agent in its own process, so no older round can be running."""
    journal: Journal | None = None
    """Open, and not loaded; the coordinator closes it at its end. None: one in memory."""
    until_idle: UntilIdle | None = None
    """How it ends by itself; None: it does not."""
    protection: ProtectionSettings = ProtectionSettings()
    """TLS, and who may call; by default neither."""


class Running(Struct):
    """A running coordinator."""

    port: int
    """The port it listens on."""
    failed: asyncio.Future[None]
    """Done, with its exception, when the coordinator cannot continue."""
    idle: asyncio.Future[str] | None = None
    """Done, with the reason, when the coordinator is not needed any more; None: it stays."""


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Running]:
    """Serve a coordinator while the context is open.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
        JournalFailed: when the journal cannot be read or written.
        ProtectionInvalid: when a file or a token for TLS or access is of no use.
    """
    journal = settings.journal or MemoryJournal(os.urandom(16).hex())
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        async with (
            protecting(settings.protection, failed) as protected,
            _serving(settings, journal, protected, failed) as running,
        ):
            yield running
    finally:
        await journal.close()


@asynccontextmanager
async def _serving(
    settings: Settings, journal: Journal, protected: Protected, failed: asyncio.Future[None]
) -> AsyncIterator[Running]:
    shared = share(protected.facts, protected.lines)
    shard = await open_shard(
        0,
        journal,
        ShardSettings(
            settings.timing,
            listens=not settings.standalone,
            announces=not settings.standalone,  # the agent in this process logs the same events
        ),
        shared,
    )
    if protected.gate is not None:
        protected.gate.worker_tokens = shard.worker_tokens
        protected.gate.knows_worker = shard.knows_worker
        protected.gate.may_read = shard.may_read
    interceptors = [Interceptor(protected.gate, shared.peers)]
    server = grpc.aio.server(options=server_options(), interceptors=interceptors)
    add_services(shard.services, server)
    health_service = HealthService(server, SERVICE_NAMES)
    add_reflection(server, SERVICE_NAMES)
    port = bind(server, _address(settings), protected.listening)
    await server.start()
    await health_service.set_serving(True)
    idle: asyncio.Future[str] | None = None
    leaves = partial(leave, shard, choose_name(port))
    async with Background(failed) as background:
        background.start(_run(shard, health_service))
        if settings.until_idle is not None:
            idle = asyncio.get_running_loop().create_future()
            background.start(_watch(shard, settings.until_idle, idle, leaves))
        try:
            yield Running(port, failed, idle)
        finally:
            background.expect_ends()
            if idle is not None and not failed.done():
                await leaves()
            await health_service.set_serving(False)
            await server.stop(STOP_GRACE_S)


async def _watch(
    shard: Shard,
    until: UntilIdle,
    idle: asyncio.Future[str],
    leaves: Callable[[], Awaitable[None]],
) -> None:
    """Note why the coordinator is not needed any more, when it is not; its journal can go."""
    try:
        why = await await_idle(shard.read, shard.changed, until, leaves)
    except CoordinatorEnded:
        pass  # the failure of the shard ends the coordinator
    else:
        until.discard()
        idle.set_result(why)
    await asyncio.Event().wait()


@asynccontextmanager
async def sharing(settings: Settings, share: Sharing) -> AsyncIterator[Running]:
    """Serve a share of the jobs of a store, and answer for all, while the context is open.

    Its end hands the jobs over to the other coordinators, within a limit.

    Args:
        settings: how the coordinator is started; its journal is not used.
        share: how it shares a store.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
        JournalFailed: when etcd can never be used like that.
        ProtectionInvalid: when a file or a token for TLS or access is of no use.
    """
    # Imported here: a coordinator without etcd never loads its client.
    from rallypoint.server.journal.open import require_etcd_client

    require_etcd_client()
    from rallypoint.server.etcd.client import EtcdClient
    from rallypoint.server.etcd.errors import EtcdError
    from rallypoint.server.fleet.owned import owning

    try:
        client = EtcdClient(share.store)
    except EtcdError as error:
        raise JournalFailed(str(error)) from error
    of_shards = ShardSettings(replace(settings.timing, search_ms=SEARCH_MS), is_shared=True)
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        async with (
            protecting(settings.protection, failed) as protected,
            owning(client, _address(settings), share, of_shards, failed, protected) as made,
        ):
            yield Running(made.port, failed)
    finally:
        await client.close()


async def _run(shard: Shard, health_service: HealthService) -> None:
    """Run the shard; if it fails, the health service says so."""
    try:
        await shard.run()
    except Exception:
        await health_service.set_serving(False)
        raise


def _address(settings: Settings) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{host}:{settings.port}"
