"""Serves the shards that this process owns in etcd, and answers for all of the store.

It listens before it has reached etcd: calls and agents learn why nothing is decided yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from rallypoint.base.addresses import parse_endpoint
from rallypoint.base.background import Background, keep_looking
from rallypoint.base.log import get_logger
from rallypoint.server.access.protecting import UNPROTECTED, Protected
from rallypoint.server.access.tokens import WorkerTokens
from rallypoint.server.etcd.claims import Claim
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.survey import find_lossy
from rallypoint.server.fleet.advertised import LOOK_S, Advertised
from rallypoint.server.fleet.host import Host, Listening, hosting
from rallypoint.server.fleet.life import OwnershipConfig
from rallypoint.server.fleet.ownership import Ownership
from rallypoint.server.fleet.standing import Standing
from rallypoint.server.journal.etcd.fleet import StoreAway, StoreIdentity, open_fleet
from rallypoint.server.journal.etcd.journal import EtcdJournal
from rallypoint.server.serving.shard import ShardSettings, Sharing

log = get_logger()

AGAIN_S = 0.5
"""Pause between two attempts to reach etcd at the start; an attempt has its own limit."""
LEAVE_LIMIT_S = 12.0
"""For handing all shards over. Then the process ends, and they move when its lease has ended."""


@asynccontextmanager
async def owning(
    client: EtcdClient,
    listen: str,
    share: Sharing,
    settings: ShardSettings,
    failed: asyncio.Future[None],
    protected: Protected = UNPROTECTED,
) -> AsyncIterator[Listening]:
    """Serve a share of the shards of a store, and answer for all, while the context is open.

    Args:
        client: of the cluster; its address has the prefix.
        listen: `host:port` to listen on; port 0: any free one.
        share: how the coordinator shares the store.
        settings: of the shards.
        failed: done, with an exception, when the coordinator cannot continue.
        protected: its protection.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
    """
    prefix, gate = client.address.prefix, protected.gate
    ownership = Ownership(client, prefix)
    fleet: StoreIdentity | None = None

    def open_journal(claim: Claim) -> EtcdJournal:
        assert fleet is not None  # what is claimed is in an open store
        return EtcdJournal(client, fleet, claim, lambda: time.time_ns() // 1_000_000)

    async def own(address: str, host: Host) -> None:
        """Open the store as soon as etcd allows it, and own a share of it."""
        nonlocal fleet
        fleet = await _open(client, share.shards, ownership.standing)
        if gate is not None:
            gate.worker_tokens = WorkerTokens(fleet.identity, fleet.secret)
            gate.identities.use(fleet.secret)
        log.info("store_opened", coordinator_id=fleet.identity, shards=fleet.shard_count)
        if lossy := await find_lossy(client):
            log.warning("lossy_etcd_found", why=lossy)
        advertised = Advertised(address, (lambda: None) if gate is None else gate.note_probe)
        ownership.address_trouble = lambda: advertised.trouble
        look = partial(advertised.look, ownership.view.members)
        background.start(keep_looking([look], LOOK_S))
        store = fleet.conditions(prefix)
        config = OwnershipConfig(
            prefix, address, fleet.shard_count, store=store, identity=fleet.identity
        )
        await ownership.run(config, host)

    async with Background(failed) as background:
        async with hosting(
            listen, ownership, settings, open_journal, failed, protected
        ) as listening:
            address = parse_endpoint(share.advertise, listening.port)
            assert address is not None, share.advertise
            run = background.start(own(address, listening.host))
            try:
                yield listening
            finally:
                background.expect_ends()
                await _leave(ownership, run)


async def _open(client: EtcdClient, shards: int | None, standing: Standing) -> StoreIdentity:
    """Return what is fixed for the store, as soon as etcd allows it.

    Raises:
        JournalFailed: when waiting does not help.
    """
    while True:
        try:
            fleet = await open_fleet(client, client.address.prefix, shards)
        except StoreAway as error:
            await standing.explain(str(error))
        else:
            standing.note("")
            return fleet
        await asyncio.sleep(AGAIN_S)


async def _leave(ownership: Ownership, run: asyncio.Task[None]) -> None:
    """Hand all shards over, within a limit; `run` has ended afterwards."""
    if ownership.has_lease():
        ownership.leave()
    else:
        run.cancel()  # there is nothing to hand over
    await asyncio.wait((run,), timeout=LEAVE_LIMIT_S)
    if not run.done():
        log.warning("shards_not_handed_over", why="etcd did not answer in time")
    run.cancel()
    with suppress(Exception, asyncio.CancelledError):  # the owner has it in `failed`
        await run
