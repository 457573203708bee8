"""Calls that read and change keys."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from rallypoint.server.rpc.keys import reading
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import scope_pb2
from support.core.key_calls import Code, change, events_of, failure, next_of, worker


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
            *(("WriteKeys", {"writes": changes}, text) for changes, text in writes),
        ]
        for method, fields, text in cases:
            code, found, _ = await failure(at.call(method, **fields))
            assert code is Code.INVALID_ARGUMENT, method
            assert found.startswith(text), found


async def test_limits_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit has a name and a value."""
    monkeypatch.setattr("rallypoint.server.core.keys.writes.KEYS_MAX", 1)
    async with worker() as at:
        await at.put("a")
        code, _, detail = await failure(at.put("b"))
        assert code is Code.RESOURCE_EXHAUSTED
        assert detail == details_pb2.LimitReached(
            limit="keys of one job", value=1, kind=details_pb2.LIMIT_KIND_KEYS
        )
        code, text, _ = await failure(at.write("a", add={"amount": 1}))
        assert (code, "does not hold a number" in text) == (Code.FAILED_PRECONDITION, True)


async def test_request_id_is_for_one_request() -> None:
    """Of whatever kind; what was known goes with an id."""
    async with worker() as at:
        put = change("a", put={"value": b"1"})
        await at.call("WriteKeys", writes=[put], request_id="r")
        for other in (
            {"writes": [change("n", add={"amount": 1})]},
            {"writes": [put], "scope": scope_pb2.SCOPE_RUN},
            {"writes": [put] * 2},
        ):
            code, text, _ = await failure(at.call("WriteKeys", request_id="r", **other))
            assert code is Code.FAILED_PRECONDITION, other
            assert "another request" in text
        known = keys_pb2.KeyValueHeader(epoch=at.agent.epoch)
        code, text, _ = await failure(at.put("b", known=known))
        assert (code, text) == (Code.INVALID_ARGUMENT, "request_id: must be set with known")


async def test_shortest_timeout_is_a_timeout() -> None:
    """It is not rounded to none: the caller learns what is missing."""
    async with worker() as at:
        call = at.call("GetKeys", keys=["a"], timeout=Duration(nanos=1))
        assert (await failure(call))[0] is Code.DEADLINE_EXCEEDED
