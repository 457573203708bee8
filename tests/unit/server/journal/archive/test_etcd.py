"""Reads the journals of all shards in etcd beside their owners, and fills a new store."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from rallypoint.server.core.memory.replay import JobSnapshot, JournalRecord
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.shards import shard_of
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.etcd.claims import member_key
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.values import Put, prefix_end
from rallypoint.server.etcd.view import Member
from rallypoint.server.journal.archive import places
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.archive.conversion import with_shards
from rallypoint.server.journal.archive.verify import verify_contents
from rallypoint.server.journal.codec.batches import decode_batch, encode_batch
from rallypoint.server.journal.etcd.filling import fill_store
from rallypoint.server.journal.etcd.fleet import StoreIdentity, open_fleet
from rallypoint.server.journal.etcd.journal import EtcdJournal
from rallypoint.server.journal.etcd.layout import PART_BYTES, head_key
from rallypoint.server.journal.interface import JournalFailed, JournalInUse, JournalUnreadable
from support.etcd.clients import Connect, Died, fail_from, lose_answers
from support.etcd.cluster import Cluster
from support.etcd.owned_shard import open_shard
from support.journal.remembered import IDENTITY, SECRET, batch_of, contents_of, jobs_of
from support.journal.stores import joined, large, small

SHARDS = 4
JOBS = jobs_of(6)
FLEET = StoreIdentity(IDENTITY, SECRET, SHARDS)


@pytest.fixture
def state(etcd: Cluster, prefix: str) -> str:
    return f"etcd://{','.join(etcd.endpoints)}{prefix}"


Open = Callable[[int], Awaitable[EtcdJournal]]


@pytest.fixture
async def open_one(state: str) -> AsyncIterator[Open]:
    """Own shards, as coordinators do, until the end of the test."""
    opened: list[EtcdJournal] = []

    async def open(shard: int) -> EtcdJournal:
        now_ms = lambda: time.time_ns() // 1_000_000  # noqa: E731
        opened.append(await open_shard(state, shard, now_ms, shards=SHARDS))
        await opened[-1].load()
        return opened[-1]

    yield open
    for journal in opened:
        await journal.close()


async def read(state: str, job_id: str = "") -> Contents:
    return await asyncio.to_thread(places.read, state, job_id)


async def fill(state: str, contents: Contents, shards: int = 0) -> None:
    await asyncio.to_thread(places.fill, state, places.fitted(state, contents, shards))


def records_in(payloads: Sequence[bytes]) -> list[JournalRecord]:
    return [record for one in payloads for record in decode_batch(one).records]


async def keys_of(client: EtcdClient, prefix: str) -> dict[bytes, bytes]:
    begin = f"{prefix}/".encode()
    found = (await client.range(begin, prefix_end(begin))).found
    return {pair.key: pair.value for pair in found}


def divided() -> Contents:
    return with_shards(contents_of(batch_of(JOBS)), SHARDS)


async def test_shards_are_read_beside_their_owners(state: str, open_one: Open) -> None:
    """Everything that was appended, with identity and secret; a shard without an owner too."""
    first, second = await open_one(0), await open_one(2)
    await first.append(small(1), 10)
    await first.append(large(2, 2 * PART_BYTES), 20)
    await second.append(small(3), 30)
    await second.compact(small(4), 40)

    contents = await read(state)
    await first.append(small(5), 50)
    assert (contents.identity, contents.secret) == (first.identity, first.secret)
    assert contents.is_sharded
    assert [records_in(payloads) for payloads in contents.journals] == [
        joined([small(1), large(2, 2 * PART_BYTES)]),
        [],
        list(small(4)),
        [],
    ]


async def test_all_shards_are_read_as_of_one_moment(
    state: str, open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What owners write, compact away and begin meanwhile is not in it."""
    journals = [await open_one(shard) for shard in range(SHARDS)]
    for shard, journal in enumerate(journals):
        await journal.append(small(shard), 10)
    own = asyncio.get_running_loop()
    asked = 0
    read_range = EtcdClient.range

    async def write_first(client: EtcdClient, *arguments: Any, **named: Any) -> Any:
        nonlocal asked
        asked += 1
        number, journal = asked, journals[asked % SHARDS]
        for write in (
            journal.append(small(100 + number), 100 + number),
            journal.compact(small(200 + number), 200 + number),
        ):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(write, own))
        return await read_range(client, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(EtcdClient, "range", write_first)
        contents = await read(state)

    assert asked >= 2 * SHARDS
    for shard, payloads in enumerate(contents.journals):
        assert records_in(payloads) == list(small(shard))


async def test_only_the_shard_of_a_job_is_read(state: str) -> None:
    """For a reader of one job."""
    await fill(state, divided())

    (job_id, *_) = JOBS
    contents = await read(state, job_id)
    whole = await read(state)
    mine = shard_of(job_id, SHARDS)
    for shard in range(SHARDS):
        assert contents.journals[shard] == (whole.journals[shard] if shard == mine else ())


async def test_filled_store_is_the_same(state: str, open_one: Open) -> None:
    """Owners load the same records and times, with the same identity, and append to them."""
    contents = divided()
    await fill(state, contents)

    assert await read(state) == contents
    for shard, payloads in enumerate(contents.journals):
        journal = await open_shard(state, shard, lambda: 0)
        loaded = await journal.load()
        await journal.append([EpochRaised(7)], loaded.now_ms)
        await journal.close()
        batch = decode_batch(payloads[-1])
        assert list(loaded.records) == records_in(payloads)
        assert (loaded.now_ms, loaded.unix_ms) == (batch.now_ms, batch.unix_ms)
        assert (journal.identity, journal.secret) == (IDENTITY, SECRET)
        assert records_in((await read(state)).journals[shard])[-1] == EpochRaised(7)


async def test_journal_moves_to_etcd(state: str) -> None:
    """From a file into shards."""
    whole = contents_of(batch_of(JOBS))
    await fill(state, whole, SHARDS)

    assert await read(state) == with_shards(whole, SHARDS)


@pytest.mark.parametrize(
    ("place", "shards", "message"),
    [
        ("sqlite:journal.sqlite", 0, "shards cannot become one journal again"),
        ("etcd://127.0.0.1:1/p", SHARDS + 1, f"cannot change: .* --shards {SHARDS}$"),
    ],
)
def test_shards_stay_as_many_as_they_are(place: str, shards: int, message: str) -> None:
    """Their numbers of events and their times cannot be put together."""
    with pytest.raises(JournalFailed, match=message):
        places.fitted(place, divided(), shards)
    assert places.fitted("etcd://127.0.0.1:1/p", divided(), SHARDS) == divided()


async def test_large_store_is_filled(state: str) -> None:
    """Batches of several parts, and more of them than fit into a transaction."""
    payloads = [encode_batch(small(number), number, number) for number in range(150)]
    payloads.append(encode_batch(large(7, 3 * PART_BYTES), 200, 200))
    contents = Contents(
        identity=IDENTITY,
        secret=SECRET,
        journals=((), tuple(payloads), ()),
        is_sharded=True,
    )
    await fill(state, contents)

    assert await read(state) == contents


async def test_crash_at_every_write_of_an_import(
    etcd: Cluster, connect: Connect, prefix: str, state: str
) -> None:
    """No coordinator starts on the remains, and the next import takes them over."""
    contents = divided()
    writes, is_done = 0, False
    while not is_done:
        dying = connect(etcd, prefix)
        fail_from(dying, writes)
        try:
            await fill_store(dying, prefix, FLEET, contents.journals)
            is_done = True
        except Died:
            if writes:  # the mark is there
                with pytest.raises(JournalUnreadable, match=r"an import into .* has not ended"):
                    await open_fleet(connect(etcd, prefix), prefix)
                with pytest.raises(JournalUnreadable, match="has not ended: wait for it"):
                    await read(state)
        writes += 1

    assert writes > SHARDS + 2
    assert await read(state) == contents
    names = (await keys_of(connect(etcd, prefix), prefix)).keys()
    assert len(names) == 5 + 2 * SHARDS  # nothing is left of the imports before


@pytest.mark.parametrize("lost", [1, 2, 100])
async def test_import_whose_answers_are_lost(
    etcd: Cluster, connect: Connect, prefix: str, state: str, lost: int
) -> None:
    """Each write comes twice, the first and the last one too."""
    client = connect(etcd, prefix)
    contents = divided()
    commit = client.endpoints.current.keys.Txn
    done = 0

    async def commit_twice(*arguments: Any, **named: Any) -> Any:
        nonlocal done
        done += 1
        await commit(*arguments, **named)
        return await commit(*arguments, **named)

    if lost == 100:
        client.endpoints.current.keys.Txn = commit_twice
    else:
        lose_answers(client, lost)
    await fill_store(client, prefix, FLEET, contents.journals)

    assert await read(state) == contents


async def test_later_import_takes_over(
    etcd: Cluster, connect: Connect, prefix: str, state: str
) -> None:
    """The one before, which was only slow, writes nothing any more."""
    slow = connect(etcd, prefix)
    other = Contents(identity="f" * 32, secret=SECRET, journals=divided().journals, is_sharded=True)
    commit = slow.endpoints.current.keys.Txn
    count = 0

    async def commit_slowly(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == 4:
            await fill(state, other)
        return await commit(*arguments, **named)

    slow.endpoints.current.keys.Txn = commit_slowly
    with pytest.raises(JournalFailed, match="another import"):
        await fill_store(slow, prefix, FLEET, divided().journals)

    assert count == 4
    assert await read(state) == other


async def test_store_that_exists_is_not_filled(
    etcd: Cluster, connect: Connect, prefix: str, state: str
) -> None:
    """It stays as it was, key by key."""
    await fill(state, divided())
    before = await keys_of(connect(etcd, prefix), prefix)

    with pytest.raises(JournalFailed, match=f"already.*etcdctl del --prefix {prefix}/"):
        await fill(state, divided())
    assert await keys_of(connect(etcd, prefix), prefix) == before


async def test_other_keys_under_the_prefix_are_not_mixed_in(
    etcd: Cluster, connect: Connect, prefix: str, state: str
) -> None:
    """Whatever they are, such as another store: there is no advice to delete them."""
    await connect(etcd, prefix).transact([], [Put(f"{prefix}/other/format".encode(), b"1")])

    with pytest.raises(JournalFailed, match=f"such as {prefix}/other/format") as raised:
        await fill(state, divided())
    assert "etcdctl" not in str(raised.value)


async def test_store_in_use_is_not_filled(
    etcd: Cluster, connect: Connect, prefix: str, state: str, open_one: Open
) -> None:
    """Its coordinators are named."""
    journal = await open_one(0)
    for number in range(5):
        member = msgspec.json.encode(Member(f"head{number}:50051"))
        await connect(etcd, prefix).transact([], [Put(member_key(prefix, f"m{number}"), member)])

    with pytest.raises(JournalInUse, match=r"head0:50051, .*stop them"):
        await fill(state, divided())
    await journal.append(small(1), 10)


async def test_coordinators_that_come_meanwhile_stop_an_import(
    etcd: Cluster, connect: Connect, prefix: str, state: str
) -> None:
    """Someone deleted the keys of a store under them, and they continue with it."""
    client = connect(etcd, prefix)
    commit = client.endpoints.current.keys.Txn
    other = connect(etcd, prefix)
    member = Put(member_key(prefix, "m"), msgspec.json.encode(Member("head:50051")))
    has_come = False

    async def commit_beside(*arguments: Any, **named: Any) -> Any:
        nonlocal has_come
        if not has_come:
            has_come = True
            await other.transact([], [member])
        return await commit(*arguments, **named)

    client.endpoints.current.keys.Txn = commit_beside
    with pytest.raises(JournalInUse, match="head:50051"):
        await fill_store(client, prefix, FLEET, divided().journals)
    with pytest.raises(JournalUnreadable, match="has not ended"):
        await read(state)


async def test_damage_is_noticed(etcd: Cluster, connect: Connect, prefix: str, state: str) -> None:
    """In any shard, with its number."""
    await fill(state, divided())
    client = connect(etcd, prefix)
    name, value = next(
        (key, value)
        for key, value in (await keys_of(client, prefix)).items()
        if b"/shards/0002/batches/" in key
    )
    await client.transact([], [Put(name, value[:-1] + b"?")])

    with pytest.raises(JournalUnreadable, match="shard 2 in etcd is damaged"):
        await read(state)
    await client.transact([], [Put(head_key(prefix, 2), b'{"format":99}')])
    with pytest.raises(JournalUnreadable, match="a newer rallypoint wrote this store"):
        await read(state)


async def test_prefix_without_a_journal_is_one_line(state: str) -> None:
    """That names the prefix."""
    with pytest.raises(JournalFailed, match=r"^etcd has no journal under /test-[0-9a-f]+; a coor"):
        await read(state)


@pytest.mark.long
async def test_etcd_that_does_not_answer_is_one_line() -> None:
    """After a limited wait."""
    began_s = time.monotonic()
    with pytest.raises(JournalFailed, match=r"^etcd at 127\.0\.0\.1:1 cannot be reached: .*$"):
        await read(f"etcd://127.0.0.1:1/{secrets.token_hex(4)}")
    assert time.monotonic() - began_s < 15


def test_job_in_a_wrong_shard_is_noticed() -> None:
    """Calls about it would never reach it."""
    (job_id, *_) = JOBS
    opened = JobSnapshot(Job(job_id, 1, JobSpec(min_nodes=1, max_nodes=1), 1, since_epoch=7))
    payload = encode_batch([EpochRaised(7), opened], 10, 10)
    right = shard_of(job_id, SHARDS)
    for shard in range(SHARDS):
        journals = [b""] * SHARDS
        journals[shard] = payload
        contents = contents_of(*journals, is_sharded=True)
        if shard == right:
            assert dict(verify_contents(contents, "place").jobs) == {"forming": 1}
            continue
        text = f"place: shard {shard}: job {job_id} belongs into shard {right}"
        with pytest.raises(JournalUnreadable, match=text):
            verify_contents(contents, "place")
