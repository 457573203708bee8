"""Starts a relay: its server, its streams to coordinators, and its health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from msgspec import Struct

from rallypoint.base.background import Background, keep_looking
from rallypoint.base.log import get_logger
from rallypoint.relay.forwarding import Calls
from rallypoint.relay.sessions import Sessions
from rallypoint.relay.uplinks import Uplinks
from rallypoint.wire.access import PLAIN, Access
from rallypoint.wire.certificate_dates import CertificateDates
from rallypoint.wire.channel import server_options
from rallypoint.wire.credentials import READABLE, Credentials, find_readable

log = get_logger()

STOP_GRACE_S = 0.5
"""How long open calls may take to end when the relay stops."""
CALLS_MAX = 16_384
"""Calls at once, those of agents among them. Each takes about 50 KB."""
LOOK_S = 1.0
"""Pause between two looks at the files."""
SERVICES = ("", "rallypoint.v1.AgentService")
"""What the health is about: the relay as a whole, and what it serves agents with."""


class CannotListen(Exception):
    """The port is in use, or the address is not this host's."""


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
    credentials = await _read(settings.access)
    uplinks = Uplinks(settings.coordinators, credentials)
    sessions = Sessions(uplinks, is_certified=bool(settings.listening.ca_file))
    calls = Calls(uplinks, sessions, credentials)
    server = grpc.aio.server(options=server_options(), maximum_concurrent_rpcs=CALLS_MAX)
    about = _Health(server)
    server.add_generic_rpc_handlers((calls,))
    looks = [credentials]
    listening = None
    if settings.listening.uses_tls:
        own = await _read(settings.listening)
        looks.append(own)
        listening = _serve_tls(own, needs_client=bool(settings.listening.ca_file))
    port = _bind(server, settings, listening)
    await server.start()
    running = Running(port, sessions, asyncio.get_running_loop().create_future())
    try:
        async with Background(running.failed) as background:
            background.start(uplinks.run())
            background.start(about.follow(uplinks))
            background.start(_look(looks))
            try:
                yield running
            finally:
                background.expect_ends()
                await about.set(is_serving=False)
                sessions.end()  # before the streams to coordinators end, so that agents learn why
    finally:
        await server.stop(STOP_GRACE_S)
        await calls.close()


async def _read(access: Access) -> Credentials:
    """Return the credentials of an access; a thread reads its files, if there are any."""
    if not access.has_files:
        return Credentials(access)
    if path := await asyncio.to_thread(find_readable, access):
        log.warning("secret_exposed", path=path, then=READABLE)
    return await asyncio.to_thread(Credentials, access)


class _Health:
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


def _serve_tls(credentials: Credentials, *, needs_client: bool) -> grpc.ServerCredentials:
    """Return credentials whose certificate is replaced when its files are."""
    version = credentials.version

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal version
        if credentials.version == version:
            return None
        version = credentials.version
        return credentials.server_configuration()

    return grpc.dynamic_ssl_server_credentials(
        credentials.server_configuration(),
        fetch,  # type: ignore[arg-type]  # None: it has not changed
        require_client_authentication=needs_client,
    )


async def _look(all_credentials: list[Credentials]) -> None:
    """Take renewed files once a second, until cancelled."""
    looks = [_Look(one).make for one in all_credentials if one.access.has_files]
    await keep_looking(looks, LOOK_S)


class _Look:
    """Looks at the files of an access."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._dates = CertificateDates(credentials)
        self._problem = ""

    async def make(self) -> None:
        await asyncio.to_thread(self._credentials.look)
        problem = self._credentials.problem
        if problem and problem != self._problem:
            log.warning("access_not_renewed", why=problem, then="the old one counts")
        self._problem = problem
        self._dates.look()


def _bind(
    server: grpc.aio.Server, settings: Settings, credentials: grpc.ServerCredentials | None
) -> int:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.port}"
    try:
        port: int
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {address}") from error
    return port
