"""The shards that this process serves, and the server that answers for all shards.

Ownership starts a shard, halts it, and stops it. A shard that has halted answers nothing more. One
that fails by itself is halted too. Its owner learns it, and gives it up or starts it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import grpc
from msgspec import Struct

from rallypoint.base.background import Background
from rallypoint.base.log import get_logger
from rallypoint.server.access.caller import WorkerRound
from rallypoint.server.access.interceptor import Interceptor
from rallypoint.server.access.protecting import UNPROTECTED, Protected
from rallypoint.server.api.about.standard import HealthService, add_reflection
from rallypoint.server.contract.routes import SERVICE_NAMES
from rallypoint.server.core.model.shards import shard_of
from rallypoint.server.etcd.claims import Claim
from rallypoint.server.fleet.directory import Directory
from rallypoint.server.fleet.forwarding import Forwarder
from rallypoint.server.fleet.router import Router
from rallypoint.server.fleet.standing import ShardRefused
from rallypoint.server.journal.interface import Journal, JournalFailed
from rallypoint.server.serving.shard import (
    Shard,
    ShardSettings,
    Shared,
    open_shard,
    share,
)
from rallypoint.wire.channel import server_options
from rallypoint.wire.listening import bind

log = get_logger()

STOP_GRACE_S = 0.5
"""How long open calls may take to end when the coordinator stops."""


class Owners(Directory, Protocol):
    """Knows also what this process owns."""

    def owns(self, shard: int) -> bool:
        """Return whether no other coordinator can own a shard, at this moment."""

    def drop(self, shard: int, why: str) -> None:
        """Learn of a shard that has halted by itself, and why; `stop` it."""


class _Hosted(Struct):
    """A shard that is served."""

    shard: Shard
    task: asyncio.Task[None]
    """Runs it."""


class Host:
    """The shards of this process."""

    def __init__(
        self,
        settings: ShardSettings,
        shared: Shared,
        owners: Owners,
        open_journal: Callable[[Claim], Journal],
    ) -> None:
        """Serve no shard yet.

        Args:
            settings: of all shards.
            shared: by all shards.
            owners: knows which shards are owned.
            open_journal: returns the journal of a claimed shard, not loaded.
        """
        self._settings = settings
        self._shared = shared
        self._owners = owners
        self._open_journal = open_journal
        self._served: dict[int, _Hosted] = {}
        self._halted: dict[int, _Hosted] = {}
        self._loading: set[int] = set()
        self._unwanted: set[int] = set()
        """Shards that were halted while they are loaded."""

    def find(self, shard: int) -> Shard | None:
        """Return a shard; None when it is not served, or may be another coordinator's."""
        hosted = self._served.get(shard)
        return hosted.shard if hosted is not None and self._owners.owns(shard) else None

    def load_of(self, shard: int) -> int:
        """Return the number of nodes: they connect again when the shard moves."""
        found = self.find(shard)
        return 0 if found is None else len(found.state.nodes)

    async def start(self, claim: Claim) -> None:
        """Load a shard and serve it.

        Raises:
            ShardRefused: when it cannot be loaded, or was halted meanwhile.
        """
        number, journal = claim.shard, self._open_journal(claim)
        self._loading.add(number)
        try:
            shard = await open_shard(number, journal, self._settings, self._shared)
            if number in self._unwanted:
                self._shared.together.remove(shard.state.holding)
                raise ShardRefused(f"shard {number} was halted while it was loaded")
        except BaseException as error:
            await journal.close()
            if isinstance(error, JournalFailed):
                raise ShardRefused(str(error)) from error
            raise
        finally:
            self._loading.discard(number)
            self._unwanted.discard(number)
        task = asyncio.ensure_future(self._run(shard))  # noqa: TID251  # `stop` awaits it
        self._served[number] = _Hosted(shard, task)

    async def _run(self, shard: Shard) -> None:
        try:
            await shard.run()
        except Exception as error:  # one shard must not end the others
            is_known = isinstance(error, JournalFailed)
            why = str(error) if is_known else f"a bug has ended shard {shard.number}: see the log"
            log.error("shard_failed", shard=shard.number, why=why, exc_info=not is_known and error)
            self.halt(shard.number)
            self._owners.drop(shard.number, why)

    def halt(self, number: int) -> None:
        """Answer and decide nothing more about a shard, at once.

        It may be loading, or not be served. Its agents, whose streams end, are not lost.
        """
        if number in self._loading:
            self._unwanted.add(number)
        hosted = self._served.pop(number, None)
        if hosted is not None:
            self._halted[number] = hosted
            hosted.task.cancel()
            hosted.shard.halt()

    async def stop(self, number: int) -> None:
        """Return when a shard that was halted writes nothing more."""
        hosted = self._halted.pop(number, None)
        if hosted is not None:
            await asyncio.gather(hosted.task, return_exceptions=True)
            await hosted.shard.close()

    async def stop_all(self) -> None:
        """Halt and stop every shard."""
        for number in tuple(self._served):
            self.halt(number)
        async with asyncio.TaskGroup() as tasks:
            for number in tuple(self._halted):
                tasks.create_task(self.stop(number))


class Listening(Struct):
    """A coordinator that answers for all shards of a store."""

    port: int
    host: Host


@asynccontextmanager
async def hosting(
    address: str,
    owners: Owners,
    settings: ShardSettings,
    open_journal: Callable[[Claim], Journal],
    failed: asyncio.Future[None],
    protected: Protected = UNPROTECTED,
) -> AsyncIterator[Listening]:
    """Answer for all shards while the context is open; serve those that the host is given.

    Args:
        address: `host:port` to listen on; port 0: any free one.
        owners: knows the owners of all shards.
        settings: of the shards.
        open_journal: returns the journal of a claimed shard, not loaded.
        failed: done, with an exception, when this cannot continue.
        protected: its protection.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
    """
    shared = share(protected.facts, protected.lines)
    host = Host(settings, shared, owners, open_journal)
    forwarder = Forwarder(owners, protected.peers)
    interceptors = [Interceptor(protected.gate, shared.peers)]
    server = grpc.aio.server(options=server_options(), interceptors=interceptors)
    router = Router(owners, host, forwarder, shared.peers, protected.facts)
    server.add_generic_rpc_handlers((router,))
    health_service = HealthService(server, SERVICE_NAMES)
    add_reflection(server, SERVICE_NAMES)
    port = bind(server, address, protected.listening)
    if protected.gate is not None:
        protected.gate.may_read = partial(_may_read, owners, host)
    await server.start()
    async with Background(failed) as background:
        background.start(forwarder.run())
        background.start(_follow(owners, health_service))
        try:
            yield Listening(port, host)
        finally:
            await health_service.set_serving(False)
            await host.stop_all()
            forwarder.end()  # else these calls last as long as the grace, and end as CANCELLED
            await server.stop(STOP_GRACE_S)


def _may_read(directory: Directory, host: Host, round: WorkerRound) -> bool:
    """Return whether workers of a round may still read; the owner of their job knows."""
    count = directory.shard_count
    shard = host.find(shard_of(round.job_id, count)) if count else None
    return shard is None or shard.may_read(round)


async def _follow(directory: Directory, health_service: HealthService) -> None:
    """Say SERVING while the store can be reached."""
    while True:
        changed = directory.changed
        await health_service.set_serving(directory.is_sure())
        await changed.wait()
