"""Reads and fills the journals of all shards in etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from rallypoint.server.core.model.shards import shard_of
from rallypoint.server.etcd.address import AddressInvalid, parse_address
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdError
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.etcd.filling import fill_store
from rallypoint.server.journal.etcd.fleet import StoreIdentity
from rallypoint.server.journal.etcd.reading import read_store
from rallypoint.server.journal.interface import JournalFailed


def read(address: str, job_id: str = "") -> Contents:
    """Return all journals, as of one revision; coordinators may be running on them.

    Args:
        address: `etcd://…`.
        job_id: read only the shard of this job; empty: all.

    Raises:
        JournalUnreadable: when they are damaged, or were written by a newer version.
        JournalFailed: when there are none, or etcd does not answer.
    """

    def choose(count: int) -> Collection[int]:
        return [shard_of(job_id, count)] if job_id else range(count)

    async def work() -> Contents:
        async with _connected(address) as client:
            fleet, journals = await read_store(client, client.address.prefix, choose)
        return Contents(
            identity=fleet.identity, secret=fleet.secret, journals=journals, is_sharded=True
        )

    return asyncio.run(work())


def fill(address: str, contents: Contents) -> None:
    """Write all journals under a prefix that has none yet, all of it or nothing.

    Args:
        address: `etcd://…`.
        contents: what to write, with shards.

    Raises:
        JournalInUse: when coordinators run on the prefix.
        JournalFailed: when there is a journal, or etcd refuses.
    """
    fleet = StoreIdentity(contents.identity, contents.secret, contents.shard_count)

    async def work() -> None:
        async with _connected(address) as client:
            await fill_store(client, client.address.prefix, fleet, contents.journals)

    asyncio.run(work())


@asynccontextmanager
async def _connected(address: str) -> AsyncIterator[EtcdClient]:
    try:
        client = EtcdClient(parse_address(address))
    except (AddressInvalid, EtcdError) as error:
        raise JournalFailed(str(error)) from error
    try:
        yield client
    finally:
        await client.close()
