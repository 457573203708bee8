"""Owners of shards over a real etcd: they come, leave, and cannot start what they claim."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rallypoint.server.etcd.claims import Claim, give_up, owner_key
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import (
    OUT_OF_SPACE,
    EtcdOutOfSpace,
    EtcdRefusedUser,
    EtcdTimedOut,
)
from rallypoint.server.etcd.values import Delete, Put, prefix_end
from rallypoint.server.etcd.watch import Seen, watch
from rallypoint.server.fleet.membership import Membership
from rallypoint.server.journal.etcd.fleet import open_fleet
from support.etcd.clients import Connect, lose_answers
from support.etcd.cluster import Cluster
from support.etcd.owners import SHARDS, Owners


@pytest.fixture
async def owners(etcd: Cluster, connect: Connect, prefix: str) -> AsyncIterator[Owners]:
    owners = Owners(prefix, lambda: connect(etcd, prefix))
    yield owners
    await owners.end()


async def test_shards_follow_those_who_come_and_leave(owners: Owners) -> None:
    """About equal shares, few moves, and no move waits for a lease."""
    owners.start()
    await owners.until(16)
    owners.start()
    await owners.until(8, 8)
    before = dict(owners.served[0].claims)
    owners.start()
    await owners.until(5, 5, 6)
    moved = [shard for shard in before if shard not in owners.served[0].claims]

    assert len(moved) in (2, 3), "one third of what it had"
    assert await owners.leave(0) < 1.5
    assert await owners.until(0, 8, 8) < 1.5
    for served in owners.served:
        started = [shard for what, shard in served.asked if what == "start"]
        # One may, when views differ for a moment about who has a shard more than the others.
        assert len(started) - len(set(started)) <= 1, "no shard comes back"


async def test_plans_go_on_after_a_moment_of_doubt(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still may plan before it notes that its lease was renewed in time."""
    owners.start()
    await owners.until(16)
    life, asked = owners.ownerships[0]._life, []
    assert life is not None

    def is_sure() -> bool:
        asked.append(life)
        monkeypatch.undo()
        return False

    monkeypatch.setattr(life.lease, "is_sure", is_sure)
    await owners.until_true(lambda: bool(asked))
    owners.start()
    await owners.until(8, 8)

    assert life is owners.ownerships[0]._life


async def test_every_release_is_in_order(owners: Owners) -> None:
    """Halted, stopped, and only then somewhere else."""
    owners.start()
    await owners.until(16)
    owners.served[0].stops.clear()
    owners.start()
    await owners.until_true(lambda: ("halt", 0) in owners.served[0].asked)
    await owners.until_true(lambda: len(owners.ownerships[1].view.members) == 2)

    assert not owners.ownerships[0].owns(0)
    assert 0 not in owners.served[1].claims
    owners.served[0].stops.set()
    await owners.until(8, 8)
    for shard in owners.served[1].claims:
        assert owners.served[0].asked.index(("halt", shard)) < owners.served[0].asked.index(
            ("stop", shard)
        )


async def test_nothing_is_owned_in_another_store(
    owners: Owners, etcd: Cluster, connect: Connect, prefix: str
) -> None:
    """The data were deleted: nothing is claimed and written until they are back."""
    client = connect(etcd, prefix)
    fleet = await open_fleet(client, prefix, SHARDS)
    owners.store = fleet.conditions(prefix)
    owners.start()
    await owners.until(16)
    begin = f"{prefix}/".encode()
    await client.transact([], [Delete(begin, prefix_end(begin))])
    standing = owners.ownerships[0].standing
    await owners.until_true(lambda: "restore a backup" in standing.trouble)

    assert owners.shares == [0]
    assert not (await client.range(begin, prefix_end(begin))).found
    await client.transact([], [Put(f"{prefix}/identity".encode(), fleet.identity.encode())])
    await owners.until(16)
    assert not standing.trouble


async def test_readers_find_owners(owners: Owners) -> None:
    """Each one knows the address of every other owner."""
    owners.start()
    await owners.until(16)
    owners.start()
    await owners.until(8, 8)
    first = owners.served[0].claims

    def known(number: int) -> list[str | None]:
        return [owners.ownerships[number].owner_of(shard) for shard in range(SHARDS)]

    others = [None if shard in first else "h1:1" for shard in range(SHARDS)]
    mine = ["h0:1" if shard in first else None for shard in range(SHARDS)]
    await owners.until_true(lambda: known(0) == others and known(1) == mine)


async def test_shard_that_cannot_start_is_released(owners: Owners, etcd: Cluster) -> None:
    """The others are served, and it is tried again, not at once."""
    number = owners.start()
    owners.served[number].refuses = {3}
    await owners.until(15)
    await owners.until_true(lambda: ("stop", 3) in owners.served[0].asked)
    await owners.until_true(lambda: 3 not in owners.ownerships[0].view.owners)

    assert owners.served[0].asked.count(("start", 3)) == 1


async def test_claims_whose_answers_were_lost(owners: Owners) -> None:
    """A shard is claimed and started once."""
    owners.start()
    lose_answers(owners.clients[0], 30)
    await owners.until(16)

    assert 16 == sum(what == "start" for what, _ in owners.served[0].asked)


async def test_owner_key_that_something_deletes(
    owners: Owners, etcd: Cluster, connect: Connect, prefix: str
) -> None:
    """Deleted keys of members end their lives, and everything begins again."""
    owners.start()
    await owners.until(16)
    begin = f"{prefix}/live/".encode()
    await connect(etcd, prefix).transact([], [Delete(begin, prefix_end(begin))])
    await owners.until_true(lambda: ("halt", 5) in owners.served[0].asked)
    await owners.until(16)

    assert 2 <= sum(one == ("start", 5) for one in owners.served[0].asked)


async def test_claim_of_something_else_is_respected(
    owners: Owners, etcd: Cluster, connect: Connect, prefix: str
) -> None:
    """A shard that a command owns is not claimed before it is free."""
    client = connect(etcd, prefix)
    await client.transact([], [Put(owner_key(prefix, 7), b'{"member": "command"}')])
    owners.start()
    await owners.until(15)
    await client.transact([], [Delete(owner_key(prefix, 7))])
    await owners.until(16)


async def test_history_that_etcd_compacts(
    owners: Owners,
    etcd: Cluster,
    connect: Connect,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A watch that begins at a compacted revision reads everything again."""
    client = connect(etcd, prefix)
    first = await client.transact([], [Put(b"/other", b"")])
    last = await client.transact([], [Put(b"/other", b"")])
    await asyncio.to_thread(etcd.control, "compact", str(last.revision))
    begun: list[int] = []

    async def watch_late(
        client: EtcdClient, key: bytes, end: bytes, from_revision: int, seen: Seen
    ) -> None:
        begun.append(from_revision if begun else first.revision)
        await watch(client, key, end, begun[-1], seen)

    monkeypatch.setattr("rallypoint.server.fleet.life.watch", watch_late)
    owners.start()
    await owners.until(16)
    owners.start()
    await owners.until(8, 8)

    assert begun[0] < last.revision < begun[1]


async def test_deletion_that_etcd_compacts(
    owners: Owners,
    etcd: Cluster,
    connect: Connect,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older members do not tell a watch what was deleted at the very revision of a compaction."""
    client, cut, mended = connect(etcd, prefix), asyncio.Event(), asyncio.Event()

    async def watch_until_cut(*asked: Any) -> None:
        if cut.is_set():
            await mended.wait()
            await watch(*asked)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch(*asked))
            await cut.wait()
            watching.cancel()
        raise EtcdTimedOut("the watch is broken")

    monkeypatch.setattr("rallypoint.server.fleet.life.watch", watch_until_cut)
    key = owner_key(prefix, 7)
    await client.transact([], [Put(key, b'{"member": "command"}')])
    owners.start()
    await owners.until(15)
    view, newest = owners.ownerships[0].view, (await client.range(key)).revision
    await owners.until_true(lambda: view.revision == newest)
    cut.set()
    deleted = await client.transact([], [Delete(key)])
    await asyncio.to_thread(etcd.control, "compact", str(deleted.revision))
    mended.set()
    await owners.until(16)

    assert deleted.revision == newest + 1


async def test_shards_of_a_newer_version_go_to_those_who_can_serve_them(owners: Owners) -> None:
    """An older coordinator refuses them again and again; the other one serves them at once."""
    older = owners.start()
    owners.served[older].refuses = set(range(SHARDS))
    await owners.until_true(lambda: len(owners.served[older].asked) >= 3 * SHARDS)
    owners.start()
    await owners.until(0, SHARDS)

    assert all(what != "halt" for what, _ in owners.served[1].asked), "nothing comes back"


async def test_release_that_etcd_refuses_is_tried_again_after_a_pause(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full etcd answers at once, and so often that the log would fill the disk."""
    refused: list[float] = []

    async def refuse(client: EtcdClient, claim: Claim) -> int | None:
        if claim.shard != 3 or len(refused) > 3:
            return await give_up(client, claim)
        refused.append(time.monotonic())
        raise EtcdOutOfSpace(OUT_OF_SPACE)

    owners.start()
    await owners.until(16)
    monkeypatch.setattr("rallypoint.server.fleet.life.claims.give_up", refuse)
    owners.ownerships[0].drop(3, "a test")
    await owners.until_true(lambda: len(refused) > 3)

    assert refused[-1] - refused[0] > 2


async def test_life_that_cannot_begin_is_tried_again_after_longer_and_longer_pauses(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user of etcd who may only read gets leases, and each is a write for all members."""
    joined: list[float] = []

    async def join(_: Membership) -> None:
        joined.append(time.monotonic())
        raise EtcdRefusedUser("etcd grants the user too little")

    monkeypatch.setattr(Membership, "join", join)
    owners.start()
    await owners.until_true(lambda: len(joined) >= 5)

    assert joined[4] - joined[0] > 1.4
