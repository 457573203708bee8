"""Starts a relay: its server, its streams to coordinators, and its health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from msgspec import Struct

from rallypoint.base.background import Background, keep_looking
from rallypoint.relay.forwarding import Calls
from rallypoint.relay.sessions import Sessions
from rallypoint.relay.uplinks import Uplinks
from rallypoint.wire.access import PLAIN, Access
from rallypoint.wire.channel import server_options
from rallypoint.wire.listening import Renewal, bind, read_credentials, serve_certificate

STOP_GRACE_S = 0.5
"""How long open calls may take to end when the relay stops."""
CALLS_MAX = 16_384
"""Calls at once, those of agents among them. Each takes about 50 KB."""
LOOK_S = 1.0
"""Pause between two looks at the files."""
SERVICES = ("", "rallypoint.v1.AgentService")
"""What the health is about: the relay as a whole, and what it serves agents with."""


class Settings(Struct, frozen=True):
    """How a relay is started."""

    host: str
    """Address to listen on."""
    port: int
    """Port to listen on; 0: any free one."""
    coordinators: str
    """host:port of the coordinator, or of several with commas in between."""
    access: Access = PLAIN
    """How the relay proves who it is, and verifies the coordinator."""
    listening: Access = PLAIN
    """Its certificate for agents, and the authorities of those; empty: connections are plain."""


class Running(Struct):
    """A running relay."""

    port: int
    """The port it listens on."""
    sessions: Sessions
    failed: asyncio.Future[None]
    """Done, with its exception, when the relay cannot continue."""


@asynccontextmanager
async def relaying(settings: Settings) -> AsyncIterator[Running]:
    """Serve agents while the context is open.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
        AccessFailed: when a file is of no use.
    """
    credentials = await asyncio.to_thread(read_credentials, settings.access)
    uplinks = Uplinks(settings.coordinators, credentials)
    sessions = Sessions(uplinks, is_certified=bool(settings.listening.ca_file))
    calls = Calls(uplinks, sessions, credentials)
    server = grpc.aio.server(options=server_options(), maximum_concurrent_rpcs=CALLS_MAX)
    about = _HealthService(server)
    server.add_generic_rpc_handlers((calls,))
    files, listening = [credentials], None
    if settings.listening.uses_tls:
        own = await asyncio.to_thread(read_credentials, settings.listening)
        files.append(own)
        listening = serve_certificate(own)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    port = bind(server, f"{host}:{settings.port}", listening)
    await server.start()
    running = Running(port, sessions, asyncio.get_running_loop().create_future())
    try:
        async with Background(running.failed) as background:
            background.start(uplinks.run())
            background.start(about.follow(uplinks))
            looks = [
                partial(asyncio.to_thread, Renewal(one).look)
                for one in files
                if one.access.has_files
            ]
            background.start(keep_looking(looks, LOOK_S))
            try:
                yield running
            finally:
                background.expect_ends()
                await about.set(is_serving=False)
                sessions.end()  # before the streams to coordinators end, so that agents learn why
    finally:
        await server.stop(STOP_GRACE_S)
        await calls.close()


class _HealthService:
    """SERVING while a coordinator is reached."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        self._changed = asyncio.Event()

    async def set(self, *, is_serving: bool) -> None:
        kinds = health_pb2.HealthCheckResponse
        for name in SERVICES:
            await self._servicer.set(name, kinds.SERVING if is_serving else kinds.NOT_SERVING)

    async def follow(self, uplinks: Uplinks) -> None:
        uplinks.on_home = self._changed.set
        while True:
            await self.set(is_serving=bool(uplinks.home))
            await self._changed.wait()
            self._changed.clear()
