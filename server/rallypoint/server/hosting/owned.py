"""Serves the shards that this process owns in etcd, and answers for all of the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.hosting.host import Host, Listening, hosting
from rallypoint.server.hosting.shard import ShardSettings
from rallypoint.server.journal.etcd.fleet import Fleet
from rallypoint.server.journal.etcd.journal import EtcdJournal
from rallypoint.server.shards.claims import Claim
from rallypoint.server.shards.lease import TTL_S
from rallypoint.server.shards.ownership import Fact, Ownership


class Advertised(Struct, frozen=True):
    """Where a coordinator is, and how soon its shards move when it is not."""

    address: str
    """`host:port` for agents and other coordinators."""
    ttl_s: int = TTL_S
    """Of its lease."""


class _Shards:
    """Starts and stops shards for their ownership."""

    def __init__(self, client: EtcdClient, fleet: Fleet) -> None:
        self._client = client
        self._fleet = fleet
        self.host: Host | None = None
        """Set before the ownership runs."""

    async def start(self, claim: Claim) -> None:
        """Load a shard and serve it."""
        journal = EtcdJournal(self._client, self._fleet, claim, lambda: time.time_ns() // 1_000_000)
        await self._served.start(claim.shard, journal)

    def halt(self, shard: int) -> None:
        """Answer nothing more about a shard."""
        self._served.halt(shard)

    async def stop(self, shard: int) -> None:
        """Return when nothing is written any more."""
        await self._served.stop(shard)

    def load_of(self, shard: int) -> int:
        """Return the number of nodes: they connect again when the shard moves."""
        found = self._served.find(shard)
        return 0 if found is None else len(found.state.nodes)

    @property
    def _served(self) -> Host:
        assert self.host is not None
        return self.host


class _Owners:
    """The directory of a store in etcd."""

    def __init__(self, fleet: Fleet, ownership: Ownership, address: str) -> None:
        self.coordinator_id = fleet.identity
        self.shard_count = fleet.shard_count
        self._ownership = ownership
        self._address = address

    @property
    def changed(self) -> asyncio.Event:
        """Return an event that the next change sets."""
        return self._ownership.view.changed

    def is_sure(self) -> bool:
        """Return whether etcd can be reached, as far as it matters."""
        return self._ownership.is_sure()

    def owner_of(self, shard: int) -> str | None:
        """Return where another coordinator serves a shard."""
        address = self._ownership.owner_address(shard)
        return None if address == self._address else address


@asynccontextmanager
async def owning(
    client: EtcdClient, fleet: Fleet, listen: str, own: Advertised, settings: ShardSettings
) -> AsyncIterator[Listening]:
    """Serve a share of the shards of a store, and answer for all, while the context is open.

    Args:
        client: of the cluster; its address has the prefix.
        fleet: what all coordinators of the store share.
        listen: `host:port` to listen on.
        own: where others reach this coordinator.
        settings: of the shards.

    Raises:
        RuntimeError: when it cannot listen there.
    """
    shards = _Shards(client, fleet)
    fact = Fact(client.address.prefix, own.address, fleet.shard_count, own.ttl_s)
    ownership = Ownership(client, fact, shards)
    owners = _Owners(fleet, ownership, own.address)
    async with hosting(listen, owners, settings, ownership.owns, ownership.drop) as listening:
        shards.host = listening.host
        task = asyncio.ensure_future(ownership.run())  # noqa: TID251  # owned by this context
        try:
            yield listening
        finally:
            ownership.leave()
            await asyncio.gather(task, return_exceptions=True)
