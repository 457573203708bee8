"""Calls that wait for keys, and watch them."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from rallypoint.server.core.keyspace import keyspace
from rallypoint.server.core.keyspace.values import Place
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.guards import limits
from rallypoint.server.rpc.keys import reading, service
from rallypoint.server.rpc.keys.waits import KeyWatch
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import scope_pb2
from support.core.key_calls import Code, change, events_of, failure, next_of, worker
from support.core.served import LIMIT_S


async def test_read_waits_for_keys() -> None:
    """Until the last of them exists; changes of other keys do not end the wait."""
    async with worker() as at:
        reading = asyncio.ensure_future(at.get("a", "b", timeout=Duration(seconds=60)))  # noqa: TID251  # ends below
        for key in ("x", "b", "y"):
            await at.put(key, b"1")
        assert not reading.done()
        await at.put("a", b"2")
        async with asyncio.timeout(LIMIT_S):
            assert await reading == {"a": b"2", "b": b"1"}


async def test_many_wait_for_what_comes_in_any_order() -> None:
    """Each gets all of them."""
    async with worker() as at:
        keys = [f"k{number}" for number in range(20)]
        calls = [at.call("GetKeys", keys=keys, timeout=Duration(seconds=60)) for _ in range(20)]
        for key in (*keys[10:], *reversed(keys[:10])):
            await at.put(key)
        async with asyncio.timeout(LIMIT_S):
            answers = await asyncio.gather(*calls)
        assert {len(answer.kvs) for answer in answers} == {20}


async def test_keys_that_do_not_come_are_named() -> None:
    """The server's time ends before the call's, so the caller learns which."""
    async with worker() as at:
        await at.put("a")
        wait = Duration(nanos=10_000_000)
        code, text, detail = await failure(at.call("GetKeys", keys=["b", "a", "c"], timeout=wait))
        assert code is Code.DEADLINE_EXCEEDED
        assert detail == details_pb2.KeysMissing(missing_count=2, keys=["b", "c"])
        assert text == "not all keys existed within 0.01 s; missing: b, c"


async def test_watch_returns_every_change_of_its_keys() -> None:
    """Once and in order, with deletions; other keys and another scope do not count."""
    async with worker() as at:
        await at.put("a/0", b"before")
        watch = at.call("WatchKeys", prefix="a/")
        assert (await next_of(watch)).header.revision == 1
        await at.put("a/1", b"1")
        await at.put("b/1", b"2")
        await at.put("a/1", b"3", scope=scope_pb2.SCOPE_RUN)
        await at.write("a/1", delete={})
        assert await events_of(watch, 2) == [("a/1", b"1", 2), ("a/1", b"", 5)]
        watch.cancel()


async def test_watch_continues_where_another_one_ended() -> None:
    """At the revision after the last header, with its epoch."""
    async with worker() as at:
        first = at.call("WatchKeys")
        await next_of(first)
        await at.put("a", b"1")
        header = (await next_of(first)).header
        first.cancel()
        await at.put("a", b"2")
        second = at.call("WatchKeys", start_revision=header.revision + 1, epoch=header.epoch)
        assert (await next_of(second)).header == header
        await at.put("a", b"3")
        assert await events_of(second, 2) == [("a", b"2", 2), ("a", b"3", 3)]
        second.cancel()
        bare = at.call("WatchKeys", start_revision=1)
        assert (await failure(bare.read()))[0] is Code.INVALID_ARGUMENT


async def test_watch_of_forgotten_changes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those of an earlier coordinator, and of those that are not there yet."""
    monkeypatch.setattr(keyspace, "CHANGES_MAX", 3)
    async with worker() as at:
        for number in range(5):
            await at.put("a", b"%d" % number)
        epoch = at.agent.epoch
        for start, since in ((2, epoch), (7, epoch), (4, epoch - 1)):
            late = at.call("WatchKeys", start_revision=start, epoch=since)
            code, text, detail = await failure(late.read())
            assert code is Code.OUT_OF_RANGE, (start, since)
            assert detail == details_pb2.KeysCompacted(oldest_revision=3, epoch=epoch)
            assert "list the keys" in text
        known = at.call("WatchKeys", start_revision=3, epoch=epoch)
        assert (await events_of(known, 3))[0] == ("a", b"2", 3)
        known.cancel()


async def test_watch_of_quiet_keys_survives_the_changes_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is forgotten was not about its keys. Headers tell it how far it has come."""
    monkeypatch.setattr(keyspace, "CHANGES_MAX", 3)
    monkeypatch.setattr(service, "PROGRESS_S", 0.01)
    async with worker() as at:
        watch = at.call("WatchKeys", prefix="quiet")
        assert (await next_of(watch)).header.revision == 0
        for number in range(10):
            await at.put(f"loud{number}")
        while (seen := await next_of(watch)).header.revision < 10:
            assert not seen.events
        await at.put("quiet", b"!")
        assert await events_of(watch, 1) == [("quiet", b"!", 11)]
        watch.cancel()


async def test_calls_that_wait_end_with_their_round() -> None:
    """The worker is about to be stopped, and reads nothing of the next round."""
    async with worker() as at:
        watch = at.call("WatchKeys", scope=scope_pb2.SCOPE_RUN)
        await next_of(watch)
        waiting = at.call("GetKeys", keys=["a"], timeout=Duration(seconds=60))
        await at.get("x")  # it has arrived before this one's answer
        await at.fail()
        for call in (watch.read(), waiting):
            code, text, detail = await failure(call)
            assert code is Code.ABORTED, text
            assert detail.kind == details_pb2.STALE_KIND_ROUND


async def test_late_caller_misses_no_change() -> None:
    """Keys change in the turn in which a watch or a wait begins, and before it."""
    async with worker() as at:
        for number in range(20):
            key = f"k{number}/"
            since = await at.put(key, b"0")
            names = [f"{key}{one}" for one in range(10)]
            writes = [[change(name, put={})] for name in names]
            puts = [at.call("WriteKeys", writes=one) for one in writes]
            watch = at.call("WatchKeys", prefix=key, start_revision=since, epoch=at.agent.epoch)
            waiting = at.call("GetKeys", keys=names, timeout=Duration(seconds=60))
            puts += [at.call("WriteKeys", writes=one) for one in writes]
            await asyncio.gather(*puts)
            revisions = [revision for _, _, revision in await events_of(watch, 21)]
            assert revisions == list(range(since, since + 21))
            assert len((await waiting).kvs) == 10
            watch.cancel()


def test_watch_begins_at_its_first_change() -> None:
    """Whichever is noted first."""
    watch = KeyWatch(JobId("job"), Place(1, ""), "host")
    for revision in (5, 3, 9):
        watch.note(revision)
    assert (watch.first, watch.changed.is_set()) == (3, True)


async def test_quiet_watch_costs_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks only when there is a change that it has not learned of."""
    monkeypatch.setattr(service, "PROGRESS_S", 0.01)
    looks = 0
    take = reading.Cursor.take

    def count(cursor: reading.Cursor, state: State, now_ms: int) -> keys_pb2.WatchKeysResponse:
        nonlocal looks
        looks += 1
        return take(cursor, state, now_ms)

    monkeypatch.setattr(reading.Cursor, "take", count)
    async with worker() as at:
        watch = at.call("WatchKeys", prefix="quiet")
        await next_of(watch)
        await at.put("loud")
        assert (await next_of(watch)).header.revision == 1
        for _ in range(50):
            await at.get("loud")
        assert looks == 1
        watch.cancel()


@pytest.mark.parametrize("limit", ["KEY_WATCHES_PER_JOB_MAX", "KEY_WATCHES_PER_HOST_MAX"])
async def test_watches_are_bounded(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have ended make room."""
    monkeypatch.setattr(limits, limit, 1)
    async with worker() as at:
        watch = at.call("WatchKeys")
        await next_of(watch)
        more = at.call("WatchKeys")
        assert (await failure(more.read()))[0] is Code.RESOURCE_EXHAUSTED
        watch.cancel()
        async with asyncio.timeout(LIMIT_S):
            while True:
                next_one = at.call("WatchKeys")
                try:
                    await next_one.read()
                    break
                except grpc.aio.AioRpcError as error:
                    assert error.code() is Code.RESOURCE_EXHAUSTED
        next_one.cancel()


async def test_waits_of_one_job_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have ended make room."""
    monkeypatch.setattr(limits, "KEY_WAITS_PER_JOB_MAX", 1)
    async with worker() as at:
        waiting = at.call("GetKeys", keys=["a"], timeout=Duration(seconds=60))
        wait = Duration(nanos=100_000_000)
        while True:
            code, text, _ = await failure(at.call("GetKeys", keys=["b"], timeout=wait))
            if code is Code.RESOURCE_EXHAUSTED:
                break
        assert "calls of one job that wait for keys" in text
        await at.put("a")
        await waiting
        assert (await failure(at.call("GetKeys", keys=["b"], timeout=wait)))[0] is (
            Code.DEADLINE_EXCEEDED
        )


async def test_stranger_takes_no_place_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is refused before it counts."""
    monkeypatch.setattr(limits, "KEY_WATCHES_PER_JOB_MAX", 0)
    async with worker() as at:
        forged = at.token.replace("1.1.", "1.7.", 1)
        code, _, _ = await failure(at.call("WatchKeys", forged).read())
        assert code is Code.UNAUTHENTICATED
