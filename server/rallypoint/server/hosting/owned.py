"""Serves the shards that this process owns in etcd, and answers for all of the store.

It listens before it has reached etcd: calls and agents learn why nothing is decided yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from rallypoint.base.addresses import parse_endpoint
from rallypoint.base.background import Background
from rallypoint.base.log import get_logger
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.survey import explain, find_lossy
from rallypoint.server.hosting.advertised import Advertised
from rallypoint.server.hosting.host import Halted, Host, hosting
from rallypoint.server.hosting.protecting import UNPROTECTED, Protected
from rallypoint.server.hosting.shard import ShardSettings
from rallypoint.server.journal.etcd.fleet import Fleet, StoreAway, open_fleet
from rallypoint.server.journal.etcd.journal import EtcdJournal
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.rpc.guards.access.gate import Gate
from rallypoint.server.rpc.guards.tokens import WorkerTokens
from rallypoint.server.shards.claims import Claim
from rallypoint.server.shards.lease import TTL_S
from rallypoint.server.shards.life import Fact
from rallypoint.server.shards.ownership import Ownership
from rallypoint.server.shards.standing import REMIND_S, ShardRefused

log = get_logger()

AGAIN_S = 0.5
"""Pause between two attempts to reach etcd at the start; an attempt has its own limit."""
LEAVE_LIMIT_S = 12.0
"""For handing all shards over. Then the process ends, and they move when its lease has ended."""


class Own(Struct, frozen=True):
    """What is this coordinator's own."""

    listen: str
    """`host:port` to listen on; port 0: any free one."""
    advertise: str
    """`host` or `host:port` where agents and other coordinators reach it. Without a port: the port
    it listens on."""
    shards: int | None = None
    """Number of shards of a new store; None: the default, or as many as there are."""
    ttl_s: int = TTL_S
    """Of its lease: how soon its shards move when it has died."""


class Owning(Struct, frozen=True):
    """A coordinator that shares a store with others."""

    port: int
    """The port it listens on."""
    address: str
    """`host:port` where agents and other coordinators reach it."""
    host: Host


class _Shards:
    """Starts and stops shards for their ownership."""

    def __init__(self, client: EtcdClient, fleet: Fleet, host: Host) -> None:
        self._client = client
        self._fleet = fleet
        self._host = host

    async def start(self, claim: Claim) -> None:
        """Load a shard and serve it.

        Raises:
            ShardRefused: when it cannot be loaded.
        """
        journal = EtcdJournal(self._client, self._fleet, claim, lambda: time.time_ns() // 1_000_000)
        try:
            await self._host.start(claim.shard, journal)
        except (JournalFailed, Halted) as error:
            raise ShardRefused(str(error)) from error

    def halt(self, shard: int) -> None:
        """Answer nothing more about a shard."""
        self._host.halt(shard)

    async def stop(self, shard: int) -> None:
        """Return when nothing is written any more."""
        await self._host.stop(shard)

    def load_of(self, shard: int) -> int:
        """Return the number of nodes: they connect again when the shard moves."""
        found = self._host.find(shard)
        return 0 if found is None else len(found.state.nodes)


class _Store:
    """The directory of a store in etcd, and the part that this process has in it."""

    def __init__(
        self, client: EtcdClient, own: Own, gate: Gate | None, background: Background
    ) -> None:
        self._client = client
        self._own = own
        self._gate = gate
        self._background = background
        self._advertised = Advertised("")
        self._address = ""
        self._fleet: Fleet | None = None
        self._ownership: Ownership | None = None
        self._opened = asyncio.Event()
        """Set when the store is open."""
        self._trouble = "etcd was not reached yet"
        """Why the store is not open."""
        self._is_leaving = False

    async def run(self, address: str, host: Host) -> None:
        """Open the store as soon as etcd allows it, and own a share of it until `leave`.

        Raises:
            JournalFailed: when waiting does not help.
        """
        self._address = address
        if self._gate is None:
            self._advertised = Advertised(address)
        else:
            self._advertised = Advertised(address, self._gate.note_probe)
        prefix = self._client.address.prefix
        fleet = await self._open(prefix)
        fact = Fact(
            *(prefix, address, fleet.shard_count, self._own.ttl_s), fleet.conditions(prefix)
        )
        self._ownership = Ownership(self._client, fact, _Shards(self._client, fleet, host))
        self._fleet = fleet
        if self._gate is not None:
            self._gate.worker_tokens = WorkerTokens(fleet.identity, fleet.secret)
            self._gate.identities.use(fleet.secret)
        self._opened.set()
        log.info("store_opened", coordinator_id=fleet.identity, shards=fleet.shard_count)
        if lossy := await find_lossy(self._client):
            log.warning("lossy_etcd_found", why=lossy)
        self._background.start(self._advertised.watch(self._ownership.view.members))
        await self._ownership.run()

    async def _open(self, prefix: str) -> Fleet:
        loop = asyncio.get_running_loop()
        remind_s = 0.0
        has_stopped = False
        while True:
            try:
                fleet = await open_fleet(self._client, prefix, self._own.shards)
            except StoreAway as error:
                why = await explain(self._client, str(error))
                if why != self._trouble or loop.time() >= remind_s:
                    log.warning("decisions_stopped", why=why)
                    remind_s, has_stopped = loop.time() + REMIND_S, True
                self._trouble = why
            else:
                if has_stopped:
                    log.info("decisions_resumed")
                return fleet
            await asyncio.sleep(AGAIN_S)

    async def leave(self, run: asyncio.Task[None]) -> None:
        """Hand all shards over, within a limit; `run` has ended afterwards."""
        self._is_leaving = True
        if self._ownership is None or not self._ownership.is_sure():
            run.cancel()  # there is nothing to hand over
        else:
            self._ownership.leave()
            self._ownership.view.wake()
        await asyncio.wait((run,), timeout=LEAVE_LIMIT_S)
        if not run.done():
            log.warning("shards_not_handed_over", why="etcd did not answer in time")
        run.cancel()
        with suppress(Exception, asyncio.CancelledError):  # the owner has it in `failed`
            await run

    def owns(self, shard: int) -> bool:
        """Return whether this process serves a shard, and is sure of it, at this moment."""
        return self._ownership is not None and self._ownership.owns(shard)

    def drop(self, shard: int, why: str) -> None:
        """Give up a shard that has halted by itself."""
        if self._ownership is not None:
            self._ownership.drop(shard, why)

    @property
    def coordinator_id(self) -> str:
        """Return the identity of the store; empty before it is open."""
        return "" if self._fleet is None else self._fleet.identity

    @property
    def shard_count(self) -> int:
        """Return the number of shards; 0 before the store is open."""
        return 0 if self._fleet is None else self._fleet.shard_count

    @property
    def changed(self) -> asyncio.Event:
        """Return an event that the next change sets."""
        return self._opened if self._ownership is None else self._ownership.view.changed

    def is_sure(self) -> bool:
        """Return whether etcd can be reached and takes changes, and this process stays."""
        is_sure = self._ownership is not None and self._ownership.is_sure()
        return is_sure and not self.trouble() and not self._is_leaving

    def trouble(self, shard: int | None = None) -> str:
        """Return why a shard is not served, in one line; None: why none can be."""
        if self._ownership is None:
            return self._trouble
        standing = self._ownership.standing
        if shard is None:
            return standing.trouble
        is_at_this_address = self._ownership.owner_address(shard) == self._address
        why_absent = self._advertised.trouble if is_at_this_address else ""
        return standing.why(shard) or why_absent

    def owner_of(self, shard: int) -> str | None:
        """Return where another coordinator serves a shard."""
        if self._ownership is None:
            return None
        address = self._ownership.owner_address(shard)
        return None if address == self._address else address


@asynccontextmanager
async def owning(
    client: EtcdClient,
    own: Own,
    settings: ShardSettings,
    failed: asyncio.Future[None],
    protected: Protected = UNPROTECTED,
) -> AsyncIterator[Owning]:
    """Serve a share of the shards of a store, and answer for all, while the context is open.

    Args:
        client: of the cluster; its address has the prefix.
        own: what is this coordinator's own.
        settings: of the shards.
        failed: done, with an exception, when the coordinator cannot continue.
        protected: its protection.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
    """
    async with Background(failed) as background:
        store = _Store(client, own, protected.gate, background)
        async with hosting(
            *(own.listen, store, settings, store.owns, store.drop, failed), protected
        ) as listening:
            address = parse_endpoint(own.advertise, listening.port)
            assert address is not None, own.advertise
            run = background.start(store.run(address, listening.host))
            try:
                yield Owning(listening.port, address, listening.host)
            finally:
                background.expect_ends()
                await store.leave(run)
