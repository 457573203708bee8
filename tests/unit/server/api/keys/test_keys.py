"""KeyValueService: calls that change, read, wait for and watch keys, and what they cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from rallypoint.server.access.usage.allowances import JobBytes
from rallypoint.server.api.keys import reading, service
from rallypoint.server.api.keys.messages import to_writes
from rallypoint.server.api.keys.service import SMALL_BYTES
from rallypoint.server.api.keys.waits import KeyWatch
from rallypoint.server.contract import limits
from rallypoint.server.contract.calls import LimitExceeded
from rallypoint.server.core.keys import count_bytes
from rallypoint.server.core.memory.weights import weight_of
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.inputs import Claim, WriteKeys
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model import keyspace
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.keyspace import Place, Write
from rallypoint.server.core.state.state import State
from rallypoint.server.journal import compaction
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import scope_pb2
from support.core.key_calls import Code, Worker, change, events_of, failure, next_of, worker
from support.core.served import LIMIT_S
from support.core.shell import Shell, running_shell

# --- Calls that read and change keys ---


async def test_value_is_read_by_all() -> None:
    """With its history; a key that does not exist is left out."""
    async with worker() as at:
        assert await at.put("a", b"1") == 1
        assert await at.put("a", b"2") == 2
        answer = await at.call("GetKeys", keys=["b", "a"])
        (kv,) = answer.kvs
        assert (kv.key, kv.value) == ("a", b"2")
        assert (kv.create_revision, kv.mod_revision, kv.version) == (1, 2, 2)
        assert (answer.header.revision, answer.header.epoch) == (2, at.agent.epoch)


async def test_every_change_has_its_answer() -> None:
    """A sum, whether a comparison held, whether a key was deleted, and what there is instead."""
    async with worker() as at:
        other, same, absent = {"value": b"x"}, {"value": b"-3"}, {"mod_revision": 0}
        added = await at.write("n", add={"amount": -3})
        assert (added.sum, added.revision) == (-3, 1)
        failed = await at.write("n", compare_and_set={"expected": other, "value": b"y"})
        assert (failed.was_changed, failed.kv.value, failed.revision) == (False, b"-3", 0)
        missing = await at.write("m", compare_and_set={"expected": other, "value": b"y"})
        assert (missing.was_changed, missing.HasField("kv")) == (False, False)
        created = await at.write("m", compare_and_set={"expected": absent, "value": b"z"})
        assert (created.was_changed, created.revision) == (True, 2)
        assert (created.kv.value, created.kv.version, created.kv.mod_revision) == (b"z", 1, 2)
        kept = await at.write("n", delete={"expected": other})
        assert (kept.was_changed, kept.kv.value) == (False, b"-3")
        deleted = await at.write("n", delete={"expected": same})
        assert (deleted.was_changed, deleted.HasField("kv")) == (True, False)
        again = await at.write("n", delete={})
        assert (again.was_changed, again.revision) == (False, 0)


async def test_several_changes_are_one_step() -> None:
    """A reader sees all of them or none."""
    async with worker() as at:
        writes = [
            change("a", put={"value": b"1"}),
            change("n", add={"amount": 4}),
            change("a", compare_and_set={"expected": {"value": b"2"}, "value": b"3"}),
            change("b", delete={}),
        ]
        watch = at.call("WatchKeys")
        await next_of(watch)
        answer = await at.call("WriteKeys", writes=writes)
        assert [one.was_changed for one in answer.results] == [True, True, False, False]
        assert [one.revision for one in answer.results] == [1, 2, 0, 0]
        assert (answer.results[1].sum, answer.results[2].kv.value) == (4, b"1")
        seen = await next_of(watch)
        assert [event.kv.key for event in seen.events] == ["a", "n"]
        assert seen.header == answer.header
        watch.cancel()


async def test_pages_have_every_key_once() -> None:
    """In order of their bytes, with the number of all; values can be left out."""
    async with worker() as at:
        names = ["a", "b/1", "b/10", "b/2", "b/é", "b/😀", "c"]
        for name in reversed(names):
            await at.put(name, b"x")
        await at.put("b/0", b"run", scope=scope_pb2.SCOPE_RUN)
        token, found = "", []
        while True:
            page = await at.call("ListKeys", prefix="b/", page_size=2, page_token=token)
            assert page.key_count == 5
            found += [kv.key for kv in page.kvs]
            assert {kv.value for kv in page.kvs} == {b"x"}
            token = page.next_page_token
            if not token:
                break
        assert found == names[1:-1]
        bare = await at.call("ListKeys", keys_only=True)
        assert [kv.key for kv in bare.kvs] == names
        assert {kv.value for kv in bare.kvs} == {b""}
        bad = at.call("ListKeys", prefix="b/", page_token="c")
        assert (await failure(bad))[0] is Code.INVALID_ARGUMENT


async def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends early, a read of too much is refused, changes come in several answers."""
    monkeypatch.setattr(reading, "ANSWER_BYTES_MAX", 60)
    monkeypatch.setattr(reading, "EVENTS_BYTES_MAX", 60)
    async with worker() as at:
        for number in range(8):
            await at.put(f"k{number}", b"x" * 30)
        page = await at.call("ListKeys")
        assert [kv.key for kv in page.kvs] == ["k0"]
        assert page.next_page_token == "k0"
        code, _, detail = await failure(at.call("GetKeys", keys=["k0", "k1"]))
        assert code is Code.RESOURCE_EXHAUSTED
        assert detail.value == 60
        watch = at.call("WatchKeys", start_revision=1, epoch=at.agent.epoch)
        assert (await next_of(watch)).header.revision == 0
        seen = await next_of(watch)
        assert (len(seen.events), seen.header.revision) == (1, 1)
        assert await events_of(watch, 7) == [
            (f"k{number}", b"x" * 30, number + 1) for number in range(1, 8)
        ]
        watch.cancel()


async def test_repeated_change_counts_once() -> None:
    """Whatever kind it is; without what was known before, it is a first attempt."""
    async with worker() as at:
        known = keys_pb2.KeyValueHeader(epoch=at.agent.epoch)
        writes = [change("n", add={"amount": 1})]
        first = await at.call("WriteKeys", writes=writes, request_id="r")
        again = await at.call("WriteKeys", writes=writes, request_id="r", known=known)
        assert first == again
        old = keys_pb2.KeyValueHeader(epoch=at.agent.epoch - 1, revision=5)
        code, text, _ = await failure(
            at.call("WriteKeys", writes=writes, request_id="s", known=old)
        )
        assert code is Code.DATA_LOSS
        assert "read the key" in text
        assert await at.get("n") == {"n": b"1"}


async def test_what_is_wrong_with_a_request_is_named() -> None:
    """The path of the field, and what it must be like."""
    async with worker() as at:
        put = change("a", put={"value": b"x" * 65_536})
        first = "writes[0]."
        writes: list[tuple[list[keys_pb2.KeyWrite], str]] = [
            ([change("", put={})], f"{first}key: must not be empty"),
            ([change("a b", put={})], f"{first}key: "),
            ([change("a", put={"value": b"x" * 65_537})], f"{first}put.value: "),
            ([change("a", compare_and_set={})], f"{first}compare_and_set.expected: is missing"),
            ([change("a", delete={"expected": {}})], f"{first}delete.expected: must have a value"),
            ([], "writes: must be 1 to 256"),
            ([change("a")], "writes[0]: must put"),
            ([put] * 17, "writes: have more than 1048576 bytes"),
        ]
        cases: list[tuple[str, dict[str, Any], str]] = [
            ("GetKeys", {}, "keys: must be 1 to 1024"),
            (
                "WriteKeys",
                {"writes": [put], "known": {"epoch": at.agent.epoch}},
                "request_id: must be set with known",
            ),
            *(("WriteKeys", {"writes": changes}, text) for changes, text in writes),
        ]
        for method, fields, text in cases:
            code, found, _ = await failure(at.call(method, **fields))
            assert code is Code.INVALID_ARGUMENT, method
            assert found.startswith(text), found


async def test_limits_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit has a name and a value."""
    monkeypatch.setattr("rallypoint.server.core.keys.KEYS_MAX", 1)
    async with worker() as at:
        await at.put("a")
        code, _, detail = await failure(at.put("b"))
        assert code is Code.RESOURCE_EXHAUSTED
        assert detail == details_pb2.LimitReached(
            limit="keys of one job", value=1, kind=details_pb2.LIMIT_KIND_KEYS
        )
        code, text, _ = await failure(at.write("a", add={"amount": 1}))
        assert (code, "does not hold a number" in text) == (Code.FAILED_PRECONDITION, True)


async def test_shortest_timeout_is_a_timeout() -> None:
    """It is not rounded to none: the caller learns what is missing."""
    async with worker() as at:
        call = at.call("GetKeys", keys=["a"], timeout=Duration(nanos=1))
        assert (await failure(call))[0] is Code.DEADLINE_EXCEEDED


# --- Calls that wait for keys, and watch them ---


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


# --- A job that changes large keys without end slows only itself down ---

LARGE = b"v" * SMALL_BYTES
HALF = b"v" * (SMALL_BYTES // 2)
JOB = JobId("job")


@pytest.fixture
def one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may make one large change in hours."""
    monkeypatch.setattr(service, "BYTES_PER_S_MAX", 1)


async def check_refused(call: Any) -> None:
    """Check that a change is refused for now."""
    code, text, detail = await failure(call)
    assert code is Code.RESOURCE_EXHAUSTED
    assert "bytes a second with which one job changes keys" in text
    assert detail.kind == details_pb2.LIMIT_KIND_KEYS
    assert detail.HasField("retry_after")


@pytest.mark.usefixtures("one_change")
async def test_large_changes_are_made_at_a_limited_rate() -> None:
    """Of the same keys, too. Small changes, reads and other jobs do not suffer."""
    async with worker() as at:
        await at.put("a", LARGE)
        await check_refused(at.put("a", LARGE))
        await check_refused(at.put("b", LARGE))
        await at.put("c", HALF)
        assert {"a": LARGE, "c": HALF} == await at.get("a", "b", "c")
        agent = at.server.agent("other", 9)
        await agent.hello()
        order = (await agent.read()).welcome.desired.run
        await Worker(at.server, agent, order.worker_token).put("a", LARGE)


@pytest.mark.usefixtures("one_change")
async def test_appends_count_what_they_make() -> None:
    """The journal gets the whole value each time."""
    async with worker() as at:
        await at.write("a", append={"value": HALF})
        await at.write("a", append={"value": HALF})
        await check_refused(at.write("a", append={"value": b"v"}))


@pytest.mark.usefixtures("one_change")
async def test_change_that_counts_for_no_worker_spends_nothing() -> None:
    """Its token is not genuine."""
    async with worker() as at:
        forged = at.token[:-1] + ("0" if at.token[-1] != "0" else "1")
        writes = [change("a", put={"value": LARGE})]
        code, _, _ = await failure(at.call("WriteKeys", forged, writes=writes))
        assert code is Code.UNAUTHENTICATED
        await at.put("a", LARGE)


def test_change_waits_for_those_before_it() -> None:
    """In order, as long as it may; one that may not spends nothing."""
    bytes = JobBytes(Limit.KEY_RATE, 10, at_once=20)
    waits_s = [bytes.use(JOB, 25, 100.0, patience_s=4.0) for _ in range(2)]
    with pytest.raises(LimitExceeded) as caught:
        bytes.use(JOB, 25, 100.0, patience_s=1.0)
    waits_s += [bytes.use(JOB, 1, 101.0, patience_s=4.0), bytes.use(JobId("other"), 1, 101.0)]

    assert [0.0, 0.5, 2.0, 0.0] == waits_s
    assert (Limit.KEY_RATE, 10, 2.0) == (
        caught.value.limit,
        caught.value.value,
        caught.value.retry_s,
    )


def test_bytes_of_many_appends() -> None:
    """To a key that a request has made itself, too."""
    append = change("ab", append={"value": b"123"})
    put = change("c", put={"value": b"1234"})
    request = keys_pb2.WriteKeysRequest(job_id=JOB, writes=[append, append, put, append])
    claim = inputs.Claim(JOB, run=1, round=1, token="", is_signed=True)

    assert 3 * 2 + 3 + 6 + 9 + 1 + 4 == count_bytes(None, to_writes(request, claim, 0))


# --- What keys cost the journal in memory ---


async def put(shell: Shell, number: int, bytes: int) -> None:
    writes = (Write(f"k{number % 2}", value=b"x" * bytes),)
    claim = Claim(JOB, 1, 1, "t", is_signed=True)
    request = WriteKeys(claim, 1, writes, request_id=f"r{number}", answer_id=f"a{number}")
    await shell.coordinator.ask(request, lambda state, now_ms: None)


async def test_large_values_are_compacted_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is bounded by what its records hold, not only by their number."""
    monkeypatch.setattr(compaction, "COMPACT_ABOVE", 100_000)
    monkeypatch.setattr(keyspace, "CHANGES_BYTES_MAX", 30_000)
    async with running_shell() as shell:
        await shell.join(JOB, 1)
        for number in range(100):
            await put(shell, number, 10_000)
        records = (await shell.journal.load()).records
        weight = sum(map(weight_of, records))
        space = shell.state.keys[JOB]
        assert space.bytes < 21_000
        assert weight < 100_000 + 2 * space.weight < 400_000, "of a million in all"
