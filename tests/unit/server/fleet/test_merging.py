"""Lists and watches of all jobs, when several coordinators share a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.client.aio import AsyncClient
from rallypoint.server.api.jobs.lists import JobList
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.server.fleet.merging.jobs import merge_pages
from rallypoint.server.fleet.merging.parts import read_position, write_position
from rallypoint.v1 import (
    coordinator_service_pb2,
    coordinator_service_pb2_grpc,
    event_service_pb2,
    event_service_pb2_grpc,
    job_pb2,
    job_service_pb2,
    job_service_pb2_grpc,
)
from rallypoint.wire.errors import unpack_details
from support.core.served import LIMIT_S, SPEC
from support.routing.fleet import SHARDS, STORE, Member, fleet, jobs_of

CREATED = event_service_pb2.EVENT_KIND_JOB_CREATED
ID, LATEST = job_service_pb2.JOB_ORDER_JOB_ID, job_service_pb2.JOB_ORDER_LATEST


def jobs(member: Member) -> Any:
    return job_service_pb2_grpc.JobServiceStub(member.channel)


def events(member: Member) -> Any:
    return event_service_pb2_grpc.EventServiceStub(member.channel)


async def create(member: Member, job_id: str) -> None:
    request = job_service_pb2.CreateJobRequest(job_id=job_id, spec=SPEC)
    await jobs(member).CreateJob(request, timeout=LIMIT_S)


async def create_all(member: Member, each: int) -> list[str]:
    """Create jobs in every shard, one shard after the other; return their ids in this order."""
    made = [job for place in range(each) for job in ids_of(place)]
    for job_id in made:
        await create(member, job_id)
    return made


def ids_of(place: int) -> list[str]:
    return [next(islice(jobs_of(shard), place, None)) for shard in range(SHARDS)]


async def pages(member: Member, method: str, **fields: Any) -> AsyncIterator[Any]:
    """Yield the pages of a list."""
    stub = events(member) if method == "ListEvents" else jobs(member)
    kinds: Any = event_service_pb2 if method == "ListEvents" else job_service_pb2
    request = getattr(kinds, f"{method}Request")(**fields)
    while True:
        page = await getattr(stub, method)(request, timeout=LIMIT_S)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


async def failure_of(call: Any) -> tuple[grpc.StatusCode, Any]:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        async with asyncio.timeout(LIMIT_S):
            await call
    return failed.value.code(), unpack_details(tuple(failed.value.trailing_metadata()))


@pytest.mark.parametrize("size", [1, 3, 5, 100])
async def test_list_of_jobs_has_those_of_all_shards_in_order(size: int) -> None:
    """Each once, on every coordinator, whatever the size of the pages."""
    async with fleet() as made:
        ids = await create_all(made.members[0], 3)
        for member in made.members:
            found = [page async for page in pages(member, "ListJobs", page_size=size, order=ID)]

            assert [job.job_id for page in found for job in page.jobs] == sorted(ids)
            assert {page.job_count for page in found} == {len(ids)}
            assert all(len(page.jobs) == size for page in found[:-1])


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_latest_jobs_come_first(size: int) -> None:
    """By the time of day: the journal times of two shards have nothing to do with each other."""
    async with fleet() as made:
        await create_all(made.members[0], 3)
        found = [
            job
            async for page in pages(made.members[1], "ListJobs", page_size=size, order=LATEST)
            for job in page.jobs
        ]

        assert len({job.job_id for job in found}) == len(found) == 3 * SHARDS
        opened = [job.opened_at.ToMilliseconds() for job in found]
        assert opened == sorted(opened, reverse=True)


async def test_filters_are_those_of_every_shard() -> None:
    """A prefix, here."""
    async with fleet() as made:
        ids = await create_all(made.members[0], 2)
        found = [page async for page in pages(made.members[0], "ListJobs", job_id_prefix=ids[3])]

        assert [job.job_id for page in found for job in page.jobs] == [
            job for job in sorted(ids) if job.startswith(ids[3])
        ]


def test_page_ends_where_that_of_a_shard_does() -> None:
    """A shard whose page is full of bytes may have jobs that come before those of the others."""

    def page(token: str, *ids: str) -> job_service_pb2.ListJobsResponse:
        summaries = [job_pb2.JobSummary(job_id=job_id) for job_id in ids]
        return job_service_pb2.ListJobsResponse(jobs=summaries, next_page_token=token)

    merged = merge_pages([page("id:b", "a", "b"), page("", "c", "e")], JobList(), 10)
    assert [job.job_id for job in merged.jobs] == ["a", "b"]
    assert merged.next_page_token == "id:b"


async def test_list_without_a_shard_is_refused() -> None:
    """A list that lacks jobs would pass for the whole."""
    async with fleet() as made:
        await made.take(2)
        call = jobs(made.members[0]).ListJobs(job_service_pb2.ListJobsRequest(), timeout=LIMIT_S)

        code, details = await failure_of(call)
        assert (code, details.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_OWNER")


async def test_request_that_breaks_the_contract_is_refused_as_by_one() -> None:
    """Before any shard is asked."""
    async with fleet() as made:
        for number, fields in enumerate(({"page_token": "x"}, {"order": 9})):
            request = job_service_pb2.ListJobsRequest(**fields)  # type: ignore[arg-type]
            code, details = await failure_of(jobs(made.members[0]).ListJobs(request, timeout=5))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert details.field == ("page_token", "order")[number]


async def read_until(watch: Any, wanted: set[str], seen: dict[str, int]) -> Any:
    """Read answers until these jobs were seen; return the last answer."""
    async with asyncio.timeout(LIMIT_S):
        while not wanted <= seen.keys():
            answer = await watch.read()
            for job in answer.jobs:
                seen[job.job_id] = seen.get(job.job_id, 0) + 1
            for job_id in answer.deleted_job_ids:
                seen[f"-{job_id}"] = 1
    return answer


async def test_watch_of_all_jobs_continues_after_a_list() -> None:
    """It shows what has changed since, of every shard, and nothing else."""
    async with fleet() as made:
        first, second = made.members
        old, new = ids_of(0), ids_of(1)
        for job_id in old:
            await create(first, job_id)
        page = await jobs(first).ListJobs(job_service_pb2.ListJobsRequest(), timeout=LIMIT_S)
        for job_id in new:
            await create(first, job_id)
        await jobs(first).CancelJob(job_service_pb2.CancelJobRequest(job_id=old[0]))
        await jobs(first).DeleteJob(job_service_pb2.DeleteJobRequest(job_id=old[0]))
        watch = jobs(second).WatchJobs(
            job_service_pb2.WatchJobsRequest(after_position=page.position)
        )
        seen: dict[str, int] = {}
        await read_until(watch, {*new, f"-{old[0]}"}, seen)
        watch.cancel()

        assert seen.keys() == {*new, f"-{old[0]}"}


async def test_watch_of_all_jobs_continues_after_an_interruption() -> None:
    """A shard that moves ends it. The next watch brings what the last one has not."""
    async with fleet() as made:
        first, second = made.members
        old = await create_all(first, 1)
        watch = jobs(first).WatchJobs(job_service_pb2.WatchJobsRequest())
        seen: dict[str, int] = {}
        answer = await read_until(watch, set(old), seen)
        await made.give(second, 0)
        code, details = await failure_of(drain(watch))
        assert code is grpc.StatusCode.UNAVAILABLE and details.retry_ms
        new = ids_of(1)
        for job_id in new:
            await create(second, job_id)
        request = job_service_pb2.WatchJobsRequest(after_position=answer.position)
        again, seen = jobs(first).WatchJobs(request), {}
        await read_until(again, set(new), seen)
        again.cancel()

        assert set(new) <= seen.keys() <= {*new, *ids_of(0)[:1]}  # restoring a job changes it


async def drain(watch: Any) -> None:
    while await watch.read() is not grpc.aio.EOF:
        pass


async def test_number_of_one_shard_is_no_place_in_all() -> None:
    """A client that has one from a single coordinator begins again."""
    async with fleet() as made:
        one = made.members[0]
        for watch, reason in (
            (
                jobs(one).WatchJobs(job_service_pb2.WatchJobsRequest(after_revision=7)),
                "REVISION_COMPACTED",
            ),
            (
                events(one).WatchEvents(event_service_pb2.WatchEventsRequest(after_sequence=7)),
                "EVENTS_COMPACTED",
            ),
        ):
            code, details = await failure_of(watch.read())
            assert (code, details.reason) == (grpc.StatusCode.OUT_OF_RANGE, reason)


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_list_of_events_has_those_of_all_shards(size: int) -> None:
    """Ordered by their times, and those of one shard by their numbers; each once."""
    async with fleet() as made:
        ids = await create_all(made.members[0], 2)
        found = [
            event
            async for page in pages(made.members[1], "ListEvents", page_size=size)
            for event in page.events
        ]

        created = [event.job_id for event in found if event.HasField("job_created")]
        assert sorted(created) == sorted(ids)
        assert len(found) == len({(event.job_id, event.sequence) for event in found})
        times = [event.time.ToMilliseconds() for event in found]
        assert times == sorted(times)


async def test_events_of_one_job_are_those_of_its_owner() -> None:
    """With the numbers that its shard gives them."""
    async with fleet() as made:
        ids = await create_all(made.members[0], 1)
        request = event_service_pb2.ListEventsRequest(job_id=ids[1])
        shown = [
            await events(member).ListEvents(request, timeout=LIMIT_S) for member in made.members
        ]

        assert shown[0] == shown[1]
        assert shown[0].last_sequence > 0 and not shown[0].position


async def test_watch_of_all_events_continues_after_a_list() -> None:
    """And tells where the next one continues."""
    async with fleet() as made:
        first, second = made.members
        await create_all(first, 1)
        found = [page async for page in pages(first, "ListEvents")]
        new = ids_of(1)
        for job_id in new:
            await create(second, job_id)
        watch = events(first).WatchEvents(
            event_service_pb2.WatchEventsRequest(after_position=found[-1].position)
        )
        seen: set[str] = set()
        async with asyncio.timeout(LIMIT_S):
            while not set(new) <= seen:
                answer = await watch.read()
                seen |= {event.job_id for event in answer.events}
        watch.cancel()

        assert seen == set(new)
        assert len(read_position(answer.position, SHARDS, "position")) == SHARDS


async def test_watch_of_events_to_come_shows_no_earlier_ones() -> None:
    """The first answer comes once every shard has one: only then a client could continue."""
    async with fleet() as made:
        first = made.members[0]
        await create_all(first, 1)
        watch = events(first).WatchEvents(event_service_pb2.WatchEventsRequest())
        async with asyncio.timeout(LIMIT_S):
            answer = await watch.read()
            assert answer.position and not answer.events
            new = ids_of(1)[1]
            await create(first, new)
            while not (answer := await watch.read()).events:
                pass
        watch.cancel()

        assert {event.job_id for event in answer.events} == {new}


async def test_coordinator_counts_what_all_have() -> None:
    """It names the owner of each shard, and those that nothing serves."""
    async with fleet() as made:
        first, second = made.members
        await create_all(first, 2)
        await made.take(2)
        stub = coordinator_service_pb2_grpc.CoordinatorServiceStub(first.channel)
        request = coordinator_service_pb2.GetCoordinatorRequest()
        shown = (await stub.GetCoordinator(request, timeout=LIMIT_S)).coordinator

        assert shown.coordinator_id == STORE
        assert shown.counts.jobs == 2 * (SHARDS - 1)
        assert [shard.number for shard in shown.shards] == list(range(SHARDS))
        assert [shard.served for shard in shown.shards] == [True, True, False, True]
        assert [shard.owner for shard in shown.shards] == ["", second.address, "", second.address]
        assert [shard.epoch > 0 for shard in shown.shards] == [True, True, False, True]


def test_position_is_read_as_it_was_written() -> None:
    """Every number that a shard may have."""
    numbers = [0, 15, 2**53 - 1]

    assert read_position(write_position(numbers), 3, "p") == numbers
    assert read_position("", 3, "p") == [0, 0, 0]


@pytest.mark.parametrize(
    "text", ["1.2", "1.2.3.4", "1..3", "1.2.G", "1.2.-3", "1.2.3fffffffffffff"]
)
def test_other_text_is_not_a_position(text: str) -> None:
    """It may be that of another store."""
    with pytest.raises(InvalidMessage, match="not a position in 3 shards"):
        read_position(text, 3, "p")


async def test_client_follows_all_jobs_and_events_over_a_move() -> None:
    """It continues by itself after the last position, and gets no event twice."""
    async with fleet() as made, asyncio.timeout(LIMIT_S):
        first, second = made.members
        old, new = await create_all(first, 1), ids_of(1)
        async with (
            AsyncClient(first.address) as client,
            client.watch_jobs() as changes,
            client.watch_events(kinds=[CREATED], after=0) as events,
        ):
            seen: set[str] = set()
            while not set(old) <= seen:
                seen |= {job.job_id for job in (await anext(changes)).jobs}
            happened = [(await anext(events)).job_id for _ in old]
            await made.give(second, 0)
            for job_id in new:
                await create(second, job_id)
            while not set(new) <= seen:
                seen |= {job.job_id for job in (await anext(changes)).jobs}
            happened += [(await anext(events)).job_id for _ in new]

        assert sorted(happened) == sorted([*old, *new])
