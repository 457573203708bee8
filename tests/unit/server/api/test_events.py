"""EventService over a real connection: pages, watches, and what is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from msgspec import Struct

from rallypoint.server.api.events import reading, service
from rallypoint.server.core.model import events as log
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import event_service_pb2_grpc as events_grpc
from support.core.key_calls import Code, failure
from support.core.served import LIMIT_S, Served, served

JOINED = events_pb2.EVENT_KIND_NODE_JOINED
SEALED = events_pb2.EVENT_KIND_ROUND_SEALED
FIRST = ["run_opened", "node_joined", "round_sealed"]
"""What happens when the only node of a job comes."""


class Reader(Struct):
    """A reader of events."""

    server: Served

    def call(self, method: str, **fields: Any) -> Any:
        stub = events_grpc.EventServiceStub(self.server.channel)
        request = getattr(events_pb2, f"{method}EventsRequest")(**fields)
        return getattr(stub, f"{method}Events")(request, timeout=LIMIT_S)

    async def every(self, **fields: Any) -> list[events_pb2.Event]:
        page = await self.call("List", **fields)
        assert not page.next_page_token
        return list(page.events)

    async def pages(self, **fields: Any) -> list[events_pb2.ListEventsResponse]:
        pages = [await self.call("List", **fields)]
        while pages[-1].next_page_token:
            pages.append(await self.call("List", **fields, page_token=pages[-1].next_page_token))
        return pages


@asynccontextmanager
async def reader(*jobs: str) -> AsyncIterator[Reader]:
    async with served() as server:
        for number, job_id in enumerate(jobs, 1):
            await server.join(job_id, number)
        yield Reader(server)


async def next_of(watch: Any) -> events_pb2.WatchEventsResponse:
    async with asyncio.timeout(LIMIT_S):
        answer = await watch.read()
    assert isinstance(answer, events_pb2.WatchEventsResponse), answer
    return answer


async def read(watch: Any, count: int) -> list[events_pb2.Event]:
    """Return the next events of a watch, so many or more."""
    found: list[events_pb2.Event] = []
    while len(found) < count:
        found += (await next_of(watch)).events
    return found


def arms(events: list[events_pb2.Event]) -> list[str | None]:
    return [event.WhichOneof("detail") for event in events]


async def test_list_has_every_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all jobs or of one; with any page size and however little a turn looks at."""
    async with reader("a", "b", "c") as at:
        everything = await at.every()
        sequences = [event.sequence for event in everything]
        assert arms(everything) == FIRST * 3
        assert ["a"] * 3 + ["b"] * 3 + ["c"] * 3 == [event.job_id for event in everything]
        assert sequences == sorted(set(sequences))
        assert [event for event in everything if event.job_id == "b"] == await at.every(job_id="b")
        for look, size in ((1_000, 2), (1, 4), (2, 1)):
            monkeypatch.setattr(reading, "LOOK_MAX", look)
            pages = await at.pages(page_size=size)
            assert everything == [event for page in pages for event in page.events]
            assert sequences[-1] == pages[-1].last_sequence
        joined = await at.pages(page_size=1, kinds=[JOINED])
        assert [["node_joined"]] * 3 == [arms(list(page.events)) for page in joined]
        assert [] == await at.every(job_id="unknown")
        assert everything[4:] == await at.every(after_sequence=sequences[3])


async def test_pages_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the answers of a watch."""
    async with reader("a", "b") as at:
        everything = await at.every()
        longest = max(event.ByteSize() for event in everything)
        monkeypatch.setattr("rallypoint.server.contract.pages.PAGE_BYTES_MAX", 2 * longest)
        pages = await at.pages()
        watch = at.call("Watch", after_sequence=0)
        first = list((await next_of(watch)).events)

        assert everything == [event for page in pages for event in page.events]
        assert max(page.ByteSize() for page in pages) < 2 * longest + 100
        assert 2 <= len(pages) <= 6
        assert list(pages[0].events) == first
        assert everything == [*first, *await read(watch, len(everything) - len(first))]
        watch.cancel()


async def test_event_says_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    """By type and in words, with the wall clock of the coordinator."""
    for module in ("shell.beginning", "shell.coordinator"):
        place = f"rallypoint.server.{module}.wall_ms"
        monkeypatch.setattr(place, lambda: 1_800_000_000_000)
    async with reader("a") as at:
        _, joined, sealed = await at.every(job_id="a")

        assert ("n1", "node n1 joined") == (joined.node_joined.node_name, joined.text)
        assert (1, 1, 1) == (sealed.run, sealed.round, sealed.round_sealed.world_size)
        assert "round 1 was sealed (first); nodes: 1, workers: 1" == sealed.text
        assert abs(sealed.time.ToMilliseconds() - 1_800_000_000_000) < 60_000
        assert sealed.epoch * 1_000 <= sealed.sequence


async def test_watch_sends_what_was_and_what_comes() -> None:
    """The first answer comes at once; without a sequence it begins now."""
    async with reader("a") as at:
        old = at.call("Watch", after_sequence=0)
        new = at.call("Watch")
        of_b = at.call("Watch", job_id="b", kinds=[SEALED])
        began = [await next_of(watch) for watch in (old, new, of_b)]
        assert [FIRST, [], []] == [arms(list(one.events)) for one in began]
        assert 1 == len({one.last_sequence for one in began})
        await at.server.join("b", 2)
        assert FIRST == arms(await read(old, 3))
        assert FIRST == arms(await read(new, 3))
        assert ["round_sealed"] == arms(await read(of_b, 1))
        for watch in (old, new, of_b):
            watch.cancel()


async def test_watch_continues_where_another_one_ended() -> None:
    """After its last sequence: nothing is missing and nothing comes twice."""
    async with reader("a") as at:
        first = at.call("Watch", job_id="b", after_sequence=0)
        reached = (await next_of(first)).last_sequence
        first.cancel()
        await at.server.join("b", 2)
        second = at.call("Watch", job_id="b", after_sequence=reached)
        assert FIRST == arms(await read(second, 3))
        second.cancel()


async def test_quiet_watch_learns_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though none of the events is for it."""
    monkeypatch.setattr(service, "PROGRESS_S", 0.05)
    async with reader("a") as at:
        watch = at.call("Watch", job_id="b")
        before = (await next_of(watch)).last_sequence
        await at.server.join("c", 3)
        latest = (await at.every())[-1].sequence
        answer = await next_of(watch)
        while answer.last_sequence < latest:
            assert before <= answer.last_sequence
            answer = await next_of(watch)
        assert latest == answer.last_sequence
        watch.cancel()


async def test_lost_events_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the jobs that are asked for; also to one that is too slow, and from elsewhere."""
    monkeypatch.setattr(log, "EVENTS_PER_JOB_MAX", 2)
    async with reader("a") as at:
        kept = await at.every(job_id="a")
        assert ["node_joined", "round_sealed"] == arms(kept)
        first, epoch = kept[0].sequence, kept[0].epoch
        for job_id, after in (("a", 1), ("", 1), ("a", first - 2), ("", kept[-1].sequence + 1)):
            for method in ("List", "Watch"):
                call = at.call(method, job_id=job_id, after_sequence=after)
                code, _, detail = await failure(call if method == "List" else call.read())
                assert Code.OUT_OF_RANGE is code, (method, after)
                assert detail == details_pb2.EventsCompacted(oldest_sequence=first, epoch=epoch)
        assert kept == await at.every(job_id="a", after_sequence=first - 1)
        await at.server.join("b", 2)
        others = await at.every(job_id="c", after_sequence=first - 1)
        assert [] == others


async def test_pages_go_on_where_events_were_lost_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list from 0 shows what is kept when each page is read, whatever was lost meanwhile."""
    monkeypatch.setattr(log, "EVENTS_PER_JOB_MAX", 2)
    async with reader("a", "b") as at:
        pages = await at.pages(page_size=1)
        assert ["node_joined", "round_sealed"] * 2 == [arms(list(p.events))[0] for p in pages]
        token = pages[0].next_page_token
        for number in (3, 4):
            await at.server.agents[0].call.done_writing()
            await at.server.join(f"c{number}", number)
        agent = at.server.agents[0].again(at.server)
        await agent.hello()
        await agent.read()
        assert len((await at.call("List", page_size=1, page_token=token)).events) == 1
        first = pages[0].last_sequence
        code, _, _ = await failure(at.call("List", page_size=1, after_sequence=first))
        assert Code.OUT_OF_RANGE is code
        broken = at.call("List", page_token="next")
        assert (await failure(broken))[0] is Code.INVALID_ARGUMENT


async def test_kind_must_be_known() -> None:
    """By its field."""
    async with reader() as at:
        code, text, _ = await failure(at.call("List", kinds=[JOINED, 0]))

        assert (Code.INVALID_ARGUMENT, "kinds[1]: must be a kind of event") == (code, text)


async def test_watch_ends_with_the_coordinator() -> None:
    """The call ends; the client watches again after the last sequence."""
    async with served() as server:
        watch = Reader(server).call("Watch")
        await next_of(watch)
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await watch.read()
