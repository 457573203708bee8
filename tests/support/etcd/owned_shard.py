"""Owns the journal of one shard, as a coordinator does, and reads that of any."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

import msgspec

from rallypoint.server.etcd.address import AddressInvalid, parse_address
from rallypoint.server.etcd.claims import member_key, take
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdError
from rallypoint.server.etcd.lease import Lease, LeaseLost, begin_lease
from rallypoint.server.etcd.values import Put
from rallypoint.server.etcd.view import Member
from rallypoint.server.journal.etcd.fleet import open_fleet
from rallypoint.server.journal.etcd.journal import EtcdJournal
from rallypoint.server.journal.etcd.layout import decode_head, head_key
from rallypoint.server.journal.etcd.reading import read_batches
from rallypoint.server.journal.interface import JournalFailed, JournalInUse

TTL_S = 10
"""Of the lease."""


async def open_shard(
    address: str, shard: int, unix_ms: Callable[[], int], *, shards: int | None = None
) -> EtcdJournal:
    """Own a shard and return its journal; `close` releases both.

    Args:
        address: `etcd://…`.
        shard: its number.
        unix_ms: the wall clock, as Unix time.
        shards: how many a new store gets; None: the default.

    Raises:
        JournalInUse: when the shard has an owner.
        JournalFailed: when the address is wrong, etcd cannot be used, or has no such shard.
    """
    try:
        client = EtcdClient(parse_address(address))
    except (AddressInvalid, EtcdError) as error:
        raise JournalFailed(str(error)) from error
    try:
        return await _own(client, shard, unix_ms, shards)
    except EtcdError as error:
        await client.close()
        raise JournalFailed(str(error)) from error
    except BaseException:
        await client.close()
        raise


async def _own(
    client: EtcdClient, shard: int, unix_ms: Callable[[], int], shards: int | None
) -> EtcdJournal:
    prefix = client.address.prefix
    fleet = await open_fleet(client, prefix, shards)
    if not 0 <= shard < fleet.shard_count:
        raise JournalFailed(f"{prefix} has the shards 0 to {fleet.shard_count - 1}, not {shard}")
    lease = await begin_lease(client, TTL_S)
    name = secrets.token_hex(8)
    key = member_key(prefix, name)
    member = msgspec.json.encode(Member(address="", is_leaving=True))
    await client.transact([], [Put(key, member, lease.id)])
    claim = await take(client, prefix, shard, name, lease.id)
    if claim is None:
        await client.revoke(lease.id)
        raise JournalInUse(f"a coordinator owns shard {shard} of {prefix}: stop it first")
    keeping = asyncio.get_running_loop().create_task(_keep(lease, key))

    async def release() -> None:
        keeping.cancel()
        with suppress(EtcdError):
            await client.revoke(lease.id)
        await client.close()

    return EtcdJournal(client, fleet, claim, unix_ms, release)


async def _keep(lease: Lease, key: bytes) -> None:
    """Keep the lease; without it, etcd refuses what the journal still writes."""
    with suppress(LeaseLost):
        await lease.keep(key)


async def read_shard(client: EtcdClient, prefix: str, shard: int) -> list[bytes]:
    """Return all batches of a shard as of now, whatever owns it."""
    found = await client.range(head_key(prefix, shard))
    if not found.found:
        return []
    head = decode_head(found.found[0].value, shard)
    return await read_batches(client, prefix, shard, head, found.revision)
