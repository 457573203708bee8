"""Coordinators that share a store in a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from rallypoint.client.aio import AsyncClient
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.hosting.host import Listening
from rallypoint.server.hosting.owned import owning
from rallypoint.server.hosting.shard import ShardSettings, Sharing
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.shards.hashing import shard_of
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from support.core.served import SPEC
from support.etcd.clients import Connect
from support.etcd.cluster import Cluster

LIMIT_S = 60
SHARDS = 4
SETTINGS = ShardSettings(Timing(window_ms=0), announces=False)


@asynccontextmanager
async def coordinator(
    connect: Connect, etcd: Cluster, prefix: str
) -> AsyncIterator[tuple[str, Listening]]:
    """Run a coordinator of the store; return its address too."""
    client = connect(etcd, prefix)
    share = Sharing(client.address, "127.0.0.1", SHARDS)
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with owning(client, "127.0.0.1:0", share, SETTINGS, failed) as running:
        yield f"127.0.0.1:{running.port}", running


async def shards(address: str) -> list[coordinator_pb2.Shard]:
    """Return the shards as a coordinator shows them."""
    async with AsyncClient(address) as client:
        return list((await client.get_coordinator()).coordinator.shards)


async def settled(addresses: list[str]) -> None:
    """Wait until each of these serves its share, and all know."""
    share = SHARDS // len(addresses)
    while True:
        seen = [await shards(address) for address in addresses]
        here = [sum(one.served and not one.owner for one in found) for found in seen]
        if here == [share] * len(addresses) and all(one.served for found in seen for one in found):
            return
        await asyncio.sleep(0.05)


async def test_every_job_has_an_owner_while_coordinators_come_and_go(
    etcd: Cluster, connect: Connect, prefix: str
) -> None:
    """One coordinator, then two, then the other one alone: every job is there all the time."""
    ids = [f"job-{number}" for number in range(12)]
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as first_stack:
        first, _ = await first_stack.enter_async_context(coordinator(connect, etcd, prefix))
        await settled([first])
        async with AsyncClient(first) as client:
            for job_id in ids[:6]:
                await client.create_job(job_id, SPEC)
        async with coordinator(connect, etcd, prefix) as (second, _):
            await settled([first, second])
            async with AsyncClient(second) as client:
                for job_id in ids[6:]:
                    await client.create_job(job_id, SPEC)
                await first_stack.aclose()
                await settled([second])
                found = [job.job_id async for job in client.list_jobs()]

    assert found == sorted(ids)


@pytest.mark.long
async def test_shard_whose_journal_has_failed_is_served_again(
    etcd: Cluster, connect: Connect, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner gives it up, and claims it again after a while; a change that failed is made."""

    async def fail(records: object, now_ms: int) -> None:
        raise JournalFailed("etcd is full")

    job_id = "job"
    number = shard_of(job_id, SHARDS)
    async with asyncio.timeout(LIMIT_S), coordinator(connect, etcd, prefix) as (address, running):
        await settled([address])
        shard = running.host.find(number)
        assert shard is not None
        monkeypatch.setattr(shard._journal, "append", fail)
        async with AsyncClient(address) as client:
            await client.create_job(job_id, SPEC)
            again = running.host.find(number)

    assert again is not None and again.state.epoch > shard.state.epoch
