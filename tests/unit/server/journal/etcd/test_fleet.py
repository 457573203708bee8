"""What all coordinators of a store share is fixed once; and a shard that a command opens."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from rallypoint.server.etcd.values import Delete, Put
from rallypoint.server.journal.etcd.fleet import open_fleet
from rallypoint.server.journal.interface import JournalFailed, JournalInUse, JournalUnreadable
from support.etcd.clients import Connect, lose_answers
from support.etcd.cluster import Cluster
from support.etcd.owned_shard import open_shard


def unix_ms() -> int:
    return 1_000


async def test_first_coordinators_agree(etcd: Cluster, connect: Connect, prefix: str) -> None:
    """Eight start at once, and one loses its answer: all have one identity and one secret."""
    clients = [connect(etcd, prefix) for _ in range(8)]
    lose_answers(clients[0], 2)
    fleets = await asyncio.gather(*(open_fleet(client, prefix, 4) for client in clients))
    other = await open_fleet(clients[0], f"{prefix}-other")

    assert 1 == len({(fleet.identity, fleet.secret, fleet.shard_count) for fleet in fleets})
    assert (32, 32, 4) == (len(fleets[0].identity), len(fleets[0].secret), fleets[0].shard_count)
    assert other.shard_count == 16
    assert other.identity != fleets[0].identity


async def test_number_of_shards_stays(etcd: Cluster, connect: Connect, prefix: str) -> None:
    client = connect(etcd, prefix)
    with structlog.testing.capture_logs() as lines:
        await open_fleet(client, prefix, 4)
        assert (await open_fleet(client, prefix)).shard_count == 4

    assert [prefix] == [line["prefix"] for line in lines if line["event"] == "store_created"]
    with pytest.raises(JournalFailed, match="has 4 shards, which cannot change"):
        await open_fleet(client, prefix, 8)
    with pytest.raises(JournalFailed, match="0 is not a valid number of shards"):
        await open_fleet(client, prefix, 0)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("format", b"2", "newer rallypoint"),
        ("format", b"x", "damaged"),
        ("identity", b"00", "damaged"),
        ("secret", b"zz", "damaged"),
        ("secret", None, "damaged"),
        ("shard_count", b"many", "damaged"),
    ],
)
async def test_store_that_cannot_be_read(
    etcd: Cluster, connect: Connect, prefix: str, name: str, value: bytes | None, line: str
) -> None:
    """It is refused, and nothing replaces what is damaged."""
    client = connect(etcd, prefix)
    await open_fleet(client, prefix)
    key = f"{prefix}/{name}".encode()
    await client.transact([], [Delete(key) if value is None else Put(key, value)])
    for _ in range(2):
        with pytest.raises(JournalUnreadable, match=line):
            await open_fleet(client, prefix)


@pytest.mark.parametrize(
    ("address", "shard", "line"),
    [
        ("etcd://HOSTS", 0, "no prefix"),
        ("etcd://HOSTS/p?ca=/absent&cert=a&key=b", 0, "cannot read /absent"),
        ("etcd://HOSTSPREFIX", 16, "has the shards 0 to 15, not 16"),
    ],
)
async def test_shard_that_cannot_be_opened(
    etcd: Cluster, prefix: str, address: str, shard: int, line: str
) -> None:
    full = address.replace("HOSTS", ",".join(etcd.endpoints)).replace("PREFIX", prefix)
    with pytest.raises(JournalFailed, match=line) as caught:
        await open_shard(full, shard, unix_ms)

    assert "\n" not in str(caught.value)


async def test_shard_has_one_owner(etcd: Cluster, prefix: str) -> None:
    """The other one learns what to do; another shard is free."""
    address = f"etcd://{','.join(etcd.endpoints)}{prefix}"
    journal = await open_shard(address, 0, unix_ms)
    with pytest.raises(JournalInUse, match=r"owns shard 0 .*: stop it"):
        await open_shard(address, 0, unix_ms)
    other = await open_shard(address, 1, unix_ms)

    assert (journal.identity, journal.secret) == (other.identity, other.secret)
    await journal.close()
    await other.close()
    await (await open_shard(address, 0, unix_ms)).close()
