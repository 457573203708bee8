"""The batches of a shard in etcd: crashes at every write, lost answers, deposed owners."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from rallypoint.server.etcd.claims import Claim, give_up, take
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdOutOfSpace
from rallypoint.server.etcd.values import Delete, Operation, Put
from rallypoint.server.journal.etcd.layout import (
    PART_BYTES,
    batch_prefix,
    batches_prefix,
    head_key,
    split,
)
from rallypoint.server.journal.etcd.log import ShardLog, ShardLost
from rallypoint.server.journal.interface import JournalFailed, JournalUnreadable
from support.etcd.clients import Connect, Died, fail_from, lose_answers, lost
from support.etcd.cluster import Cluster, running
from support.etcd.owned_shard import read_shard

SHARD = 3
MIB = 1024 * 1024
LARGE = bytes(range(256)) * (3 * PART_BYTES // 256 + 1)
"""A batch of four parts."""


async def claimed(client: EtcdClient, prefix: str, member: str = "one") -> Claim:
    lease = (await client.grant(60)).lease
    claim = await take(client, prefix, SHARD, member, lease)
    assert claim is not None
    return claim


async def opened(client: EtcdClient, prefix: str, claim: Claim) -> tuple[ShardLog, list[bytes]]:
    log = ShardLog(client, prefix, claim)
    batches = await log.open()
    return log, batches


async def keys_of(client: EtcdClient, prefix: str) -> list[bytes]:
    begin = batches_prefix(prefix, SHARD)
    found = await client.range(begin, begin[:-1] + b"0", keys_only=True)
    return [pair.key for pair in found.found]


@pytest.mark.parametrize("payload", [b"new", LARGE], ids=["small", "large"])
async def test_crash_at_every_write_of_an_append(
    etcd: Cluster, connect: Connect, prefix: str, payload: bytes
) -> None:
    """The batch is there as a whole or not at all, and no part of another is left."""
    client = connect(etcd, prefix)
    claim = await claimed(client, prefix)
    log, _ = await opened(client, prefix, claim)
    await log.append(b"old", 1)
    stored: list[bool] = []
    while not stored or not stored[-1]:
        dying = connect(etcd, prefix)
        log, before = await opened(dying, prefix, claim)
        fail_from(dying, len(stored))
        try:
            await log.append(payload, 1)
        except Died:
            pass
        _, batches = await opened(client, prefix, claim)
        stored.append(batches == [*before, payload])

        assert stored[-1] or batches == before
    parts = len(list(split(b"", payload)))
    assert len(await keys_of(client, prefix)) == 1 + parts
    assert [False] * parts + [True] == stored


async def test_crash_at_every_write_of_a_compaction(
    etcd: Cluster, connect: Connect, prefix: str
) -> None:
    """All old batches, or all new ones; nothing of the others is left after the next start."""
    client = connect(etcd, prefix)
    claim = await claimed(client, prefix)
    log, _ = await opened(client, prefix, claim)
    old = [b"a", LARGE, b"c"]
    for payload in old:
        await log.append(payload, 1)
    new = [b"d", LARGE[::-1], b"e"]
    died = 0
    batches = old
    while batches == old:
        dying = connect(etcd, prefix)
        log, before = await opened(dying, prefix, claim)
        assert old == before
        fail_from(dying, died)
        died += 1
        try:
            await log.replace(new, 7)
        except Died:
            pass
        log, batches = await opened(client, prefix, claim)

        assert batches in (old, new)
        assert len(await keys_of(client, prefix)) == 6
    assert died > 4, "the snapshot takes several transactions"
    assert (7, 3) == (log.head.records, log.head.next)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("payload", [b"new", LARGE], ids=["small", "large"])
async def test_lost_answer_stores_a_batch_once(
    etcd: Cluster, connect: Connect, prefix: str, payload: bytes, times: int
) -> None:
    """etcd carries a write out and its answer is lost: the repetition finds that."""
    client = connect(etcd, prefix)
    claim = await claimed(client, prefix)
    log, _ = await opened(client, prefix, claim)
    lose_answers(client, times)
    await log.append(payload, 1)
    await log.append(b"next", 1)
    lose_answers(client, times)
    await log.replace([b"snapshot"], 1)
    await log.append(b"last", 1)

    _, batches = await opened(client, prefix, claim)
    assert [b"snapshot", b"last"] == batches


async def test_write_that_cannot_be_resolved_ends_the_log(
    etcd: Cluster, connect: Connect, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot tell, and writes nothing else: the next life finds what has happened."""
    monkeypatch.setattr("rallypoint.server.journal.etcd.log.WRITE_LIMIT_S", 0.3)
    client = connect(etcd, prefix)
    claim = await claimed(client, prefix)
    dying = connect(etcd, prefix)
    log, _ = await opened(dying, prefix, claim)
    lose_answers(dying, 1_000_000)
    with pytest.raises(JournalFailed, match="may be stored or not") as caught:
        await log.append(b"stored", 1)
    with pytest.raises(JournalFailed) as again:
        await log.append(b"never", 1)

    assert caught.value is again.value
    assert (await opened(client, prefix, claim))[1] == [b"stored"]


async def test_late_write_of_an_earlier_life_fails(
    etcd: Cluster, connect: Connect, prefix: str
) -> None:
    """A write that etcd takes after the owner has started again: same claim, other life."""
    client = connect(etcd, prefix)
    claim = await claimed(client, prefix)
    late, _ = await opened(connect(etcd, prefix), prefix, claim)
    log, _ = await opened(client, prefix, claim)
    with pytest.raises(JournalFailed, match="something else"):
        await late.append(b"late", 1)
    with pytest.raises(JournalFailed, match="something else"):
        await late.replace([b"late"], 1)
    await log.append(b"new", 1)

    assert (await opened(client, prefix, claim))[1] == [b"new"]


@pytest.mark.parametrize("payload", [b"late", LARGE], ids=["small", "large"])
async def test_deposed_owner_writes_nothing(
    etcd: Cluster, connect: Connect, prefix: str, payload: bytes
) -> None:
    """The shard has another owner, or none, or the same member again under another claim."""
    client = connect(etcd, prefix)
    claim = await claimed(client, prefix)
    deposed = [(await opened(client, prefix, claim))[0] for _ in range(2)]
    await give_up(client, claim)
    with pytest.raises(ShardLost, match="another owner"):
        await deposed[0].append(payload, 1)
    other = await claimed(client, prefix, "other")
    log, _ = await opened(client, prefix, other)
    await log.append(b"other", 1)
    with pytest.raises(ShardLost):
        await deposed[0].replace([payload], 1)
    await give_up(client, other)
    again = await claimed(client, prefix)
    with pytest.raises(ShardLost):
        await deposed[1].append(payload, 1)
    with pytest.raises(ShardLost):
        await opened(client, prefix, claim)

    assert (await opened(client, prefix, again))[1] == [b"other"]
    assert len(await keys_of(client, prefix)) == 1


async def test_etcd_out_of_space(
    tmp_path_factory: pytest.TempPathFactory, connect: Connect, prefix: str
) -> None:
    """The append fails with a line that says what to do; what is stored can still be read."""
    flag = f"--quota-backend-bytes={8 * MIB}"
    with running(tmp_path_factory.mktemp("etcd"), 1, flag) as cluster:
        client = connect(cluster, prefix)
        claim = await claimed(client, prefix)
        log, _ = await opened(client, prefix, claim)
        await log.append(b"stored", 1)
        with pytest.raises(EtcdOutOfSpace):
            for _ in range(64):
                await client.transact([], [Put(f"{prefix}/history".encode(), bytes(MIB))])
        with pytest.raises(JournalFailed, match=r"out of space: .* alarm disarm"):
            await log.append(b"refused", 1)
        with pytest.raises(JournalFailed, match="out of space"):
            await opened(client, prefix, claim)
        assert [b"stored"] == await read_shard(client, prefix, SHARD)

        cluster.control("compact", str((await client.range(b"/")).revision))
        cluster.control("defrag")
        cluster.control("alarm", "disarm")
        log, batches = await opened(client, prefix, claim)
        await log.append(b"next", 1)
        assert [b"stored"] == batches


@pytest.mark.parametrize("damage", ["missing", "changed", "swapped", "head"])
async def test_damage_stops_the_start(
    etcd: Cluster, connect: Connect, prefix: str, damage: str
) -> None:
    """Nothing is skipped, and nothing is deleted."""
    client = connect(etcd, prefix)
    claim = await claimed(client, prefix)
    log, _ = await opened(client, prefix, claim)
    for payload in (b"a", b"b", b"c"):
        await log.append(payload, 1)
    first, second = (batch_prefix(prefix, SHARD, 0, number) + b"0000" for number in (1, 2))
    operations: dict[str, list[Operation]] = {
        "missing": [Delete(first)],
        "changed": [Put(first, b"x")],
        "swapped": [Put(first, b"c"), Put(second, b"b")],
        "head": [Put(head_key(prefix, SHARD), b"{}")],
    }
    await client.transact([], operations[damage])

    with pytest.raises(JournalUnreadable, match="restore a backup"):
        await opened(client, prefix, claim)
    assert len(await keys_of(client, prefix)) == (2 if damage == "missing" else 3)


async def test_newer_format_is_refused(etcd: Cluster, connect: Connect, prefix: str) -> None:
    """With a line that names both formats; unknown fields of the newer head do not matter."""
    client = connect(etcd, prefix)
    claim = await claimed(client, prefix)
    await client.transact([], [Put(head_key(prefix, SHARD), b'{"format": 2, "other": [1]}')])

    with pytest.raises(JournalUnreadable, match=r"newer rallypoint .*format 2; this one reads 1"):
        await opened(client, prefix, claim)


async def test_compaction_of_etcd_during_a_load(
    etcd: Cluster, connect: Connect, prefix: str
) -> None:
    """The revision that is read may be compacted away meanwhile: the load reads a newer one."""
    client = connect(etcd, prefix)
    claim = await claimed(client, prefix)
    log, _ = await opened(client, prefix, claim)
    for number in range(40):
        await log.append(b"%d" % number, 1)
    loading = connect(etcd, prefix)
    pages = 0
    read = loading.endpoints.current.keys.Range

    async def read_late(request: object, **named: object) -> object:
        nonlocal pages
        pages += 1
        if pages == 2:  # the first one was the head
            last = await client.transact([], [Put(f"{prefix}/x".encode(), b"")])
            await asyncio.to_thread(etcd.control, "compact", str(last.revision))
        return await read(request, **named)

    loading.endpoints.current.keys.Range = read_late
    _, batches = await opened(loading, prefix, claim)

    assert pages > 3
    assert [b"%d" % number for number in range(40)] == batches


@pytest.fixture
def trio(etcd_of_three: Cluster) -> Iterator[Cluster]:
    yield etcd_of_three
    etcd_of_three.heal()


async def test_member_that_dies_during_appends(
    trio: Cluster, connect: Connect, prefix: str
) -> None:
    """Every append that has returned is there, in order and once; the leader is killed."""
    client = connect(trio, prefix)
    claim = await claimed(client, prefix)
    log, _ = await opened(client, prefix, claim)
    for number in range(60):
        if number in (20, 40):
            trio.find_leader().kill() if number == 20 else trio.heal()
        await log.append(b"%d" % number, 1)

    _, batches = await opened(client, prefix, claim)
    assert [b"%d" % number for number in range(60)] == batches


async def test_refused_attempt_after_a_lost_one(
    etcd: Cluster, connect: Connect, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is lost, and the repetition is refused for another reason: the log ends."""
    client = connect(etcd, prefix)
    claim = await claimed(client, prefix)
    dying = connect(etcd, prefix)
    log, _ = await opened(dying, prefix, claim)
    commit, calls = dying.endpoints.current.keys.Txn, 0

    async def commit_once(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            await commit(*arguments, **named)
            raise lost()
        raise lost(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")

    dying.endpoints.current.keys.Txn = commit_once
    with pytest.raises(JournalFailed, match="out of space"):
        await log.append(b"stored", 1)
    with pytest.raises(JournalFailed, match="out of space"):
        await log.append(b"never", 1)

    assert (await opened(client, prefix, claim))[1] == [b"stored"]


async def test_reader_writes_nothing(etcd: Cluster, connect: Connect, prefix: str) -> None:
    """A shard is read while its owner appends and compacts; one without a journal is empty."""
    client = connect(etcd, prefix)
    reader = connect(etcd, prefix)
    assert [] == await read_shard(reader, prefix, SHARD)
    log, _ = await opened(client, prefix, await claimed(client, prefix))
    for payload in (b"a", LARGE, b"c"):
        await log.append(payload, 1)
    assert [b"a", LARGE, b"c"] == await read_shard(reader, prefix, SHARD)
    await log.replace([b"d"], 1)
    await log.append(b"e", 1)

    assert [b"d", b"e"] == await read_shard(reader, prefix, SHARD)
