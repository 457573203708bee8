"""Why nothing is decided about a job: every call and every stream says it."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from rallypoint.v1 import (
    coordinator_service_pb2,
    coordinator_service_pb2_grpc,
    event_service_pb2,
    event_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
)
from rallypoint.wire.errors import unpack_details
from support.core.served import LIMIT_S
from support.routing.fleet import Member, Seat, fleet, job_of

MINE, OTHERS = 0, 1
"""A shard of the first coordinator, and one of the second."""
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
WHY = "the table cannot be reached"


def check(error: grpc.aio.AioRpcError) -> None:
    details = unpack_details(tuple(error.trailing_metadata() or ()))
    assert (error.code(), details.reason) == (UNAVAILABLE, "STORE_UNAVAILABLE")
    assert details.retry_ms == 500 and WHY in str(error.details())


async def refuses_everything(member: Member, job_id: str) -> None:
    """Calls about one job and about all, streams, and a Hello end alike."""
    jobs = job_service_pb2_grpc.JobServiceStub(member.channel)
    events = event_service_pb2_grpc.EventServiceStub(member.channel)
    about = coordinator_service_pb2_grpc.CoordinatorServiceStub(member.channel)
    get = coordinator_service_pb2.GetCoordinatorRequest()
    for call in (
        jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=LIMIT_S),
        jobs.ListJobs(job_service_pb2.ListJobsRequest(), timeout=LIMIT_S),
        about.GetCoordinator(get, timeout=LIMIT_S),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
        check(failed.value)
    for stream in (
        jobs.WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id), timeout=LIMIT_S),
        events.WatchEvents(event_service_pb2.WatchEventsRequest(), timeout=LIMIT_S),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stream.read()
        check(failed.value)
    agent = member.agent(job_id, 1)
    await agent.hello()
    code, text = await agent.ending()
    assert code is UNAVAILABLE and WHY in text


async def test_store_that_cannot_be_reached() -> None:
    """A coordinator that asks another owner passes its reason on."""
    async with fleet() as made:
        first, second = made.members
        made.table.can_reach = False
        for member in made.members:
            member.seat.sure.clear()
        made.table.change()

        await refuses_everything(first, job_of(MINE))
        await refuses_everything(second, job_of(OTHERS))
        request = job_service_pb2.GetJobRequest(job_id=job_of(OTHERS))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await job_service_pb2_grpc.JobServiceStub(first.channel).GetJob(request)
        check(failed.value)


async def test_store_that_was_not_reached_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one knows how many shards there are, so no call is about one."""
    async with fleet() as made:
        made.table.can_reach = False
        with monkeypatch.context() as patch:
            patch.setattr(Seat, "shard_count", 0)
            await refuses_everything(made.members[0], job_of(OTHERS))


async def test_owner_that_does_not_answer_while_the_store_is_away() -> None:
    """The directory still names it: the caller learns both."""
    async with fleet() as made:
        first, _ = made.members
        made.table.owners[OTHERS] = "127.0.0.1:1"
        made.table.can_reach = False
        request = job_service_pb2.GetJobRequest(job_id=job_of(OTHERS))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await job_service_pb2_grpc.JobServiceStub(first.channel).GetJob(request)
        agent = first.agent(job_of(OTHERS), 1)
        await agent.hello()
        code, text = await agent.ending()

    assert unpack_details(tuple(failed.value.trailing_metadata() or ())).reason == "OWNER_LOST"
    assert "127.0.0.1:1, has not answered" in str(failed.value.details())
    assert WHY in str(failed.value.details())
    assert code is UNAVAILABLE and "127.0.0.1:1 owns the job" in text and WHY in text


async def test_shards_with_an_owner_are_served_all_the_same() -> None:
    """Only this coordinator has lost the store: it asks the others as before."""
    async with fleet() as made:
        first, second = made.members
        first.seat.sure.clear()
        first.seat.table = type(made.table)()
        first.seat.table.owners = dict(made.table.owners)
        first.seat.table.can_reach = False
        jobs = job_service_pb2_grpc.JobServiceStub(first.channel)
        found = {}
        for shard in (MINE, OTHERS):
            request = job_service_pb2.GetJobRequest(job_id=job_of(shard))
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await jobs.GetJob(request, timeout=LIMIT_S)
            found[shard] = failed.value

        check(found[MINE])
        assert found[OTHERS].code() is grpc.StatusCode.NOT_FOUND, "the owner has answered"
        assert second.listening.host.find(OTHERS) is not None
