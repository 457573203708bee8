"""Calls about jobs of other coordinators, over real gRPC servers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.server.core.model.spec import Timing
from rallypoint.server.etcd.claims import Claim
from rallypoint.server.fleet import forwarding
from rallypoint.server.fleet.forwarding import STILL_S, WARY_S
from rallypoint.server.fleet.host import hosting
from rallypoint.server.journal.interface import Journal
from rallypoint.server.serving.shard import ShardSettings
from rallypoint.v1 import (
    barrier_service_pb2,
    barrier_service_pb2_grpc,
    error_details_pb2,
    job_service_pb2,
    job_service_pb2_grpc,
    key_value_service_pb2,
    key_value_service_pb2_grpc,
    scope_pb2,
)
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from rallypoint.wire.errors import unpack_details
from support.core.key_calls import change
from support.core.served import LIMIT_S, SPEC, Agent
from support.routing.fleet import Member, Seat, Table, fleet, hanging, job_of

MINE, OTHERS = 0, 1
"""A shard of the first coordinator, and one of the second."""
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def jobs(member: Member) -> Any:
    return job_service_pb2_grpc.JobServiceStub(member.channel)


async def create(member: Member, job_id: str) -> None:
    request = job_service_pb2.CreateJobRequest(job_id=job_id, spec=SPEC)
    await jobs(member).CreateJob(request, timeout=LIMIT_S)


async def failure_of(call: Any) -> tuple[grpc.StatusCode, Any]:
    """Return the status of a call that fails, and its details."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        async with asyncio.timeout(LIMIT_S):
            await call
    return failed.value.code(), unpack_details(tuple(failed.value.trailing_metadata()))


async def token_of(agent: Agent, member: Member) -> str:
    """Return the token of the workers of an agent that joins."""
    await agent.hello()
    return (await agent.read()).welcome.desired.run.worker_token


@pytest.mark.parametrize("shard", [MINE, OTHERS])
async def test_every_coordinator_answers_for_every_job(shard: int) -> None:
    """What one has changed, all show."""
    async with fleet() as made:
        for member in made.members:
            job_id = f"{job_of(shard)}"
            request = job_service_pb2.GetJobRequest(job_id=job_id)
            if member is made.members[0]:
                await create(member, job_id)
            answer = await jobs(member).GetJob(request, timeout=LIMIT_S)

            assert answer.job.job_id == job_id


async def test_refusal_of_the_owner_arrives_unchanged() -> None:
    """Status, text and details are the same as when a client asks the owner."""
    async with fleet() as made:
        request = job_service_pb2.GetJobRequest(job_id=job_of(OTHERS))
        seen = []
        for member in made.members:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await jobs(member).GetJob(request, timeout=LIMIT_S)
            error = failed.value
            seen.append((error.code(), error.details(), tuple(error.trailing_metadata())))

        assert seen[0] == seen[1]
        assert unpack_details(seen[0][2]).own == error_details_pb2.UnknownJob(job_id=job_of(OTHERS))


async def test_token_of_a_worker_is_forwarded() -> None:
    """A worker may call any coordinator; without its token it is refused by the owner."""
    async with fleet() as made:
        first, owner = made.members
        job_id = job_of(OTHERS)
        agent = owner.agent(job_id, 1)
        token = await token_of(agent, owner)
        stub = key_value_service_pb2_grpc.KeyValueServiceStub(first.channel)
        put = key_value_service_pb2.WriteKeysRequest(
            job_id=job_id, scope=scope_pb2.SCOPE_RUN, writes=[change("k", put={"value": b"v"})]
        )

        code, details = await failure_of(stub.WriteKeys(put, timeout=LIMIT_S))
        assert (code, details.reason) == (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_MISSING")
        answer = await stub.WriteKeys(put, metadata=((WORKER_TOKEN_KEY, token),), timeout=LIMIT_S)
        assert answer.header.revision > 0


async def test_deadline_of_the_client_is_the_owners() -> None:
    """A barrier says who is missing a little before the deadline, so the owner must know it."""
    async with fleet() as made:
        first, owner = made.members
        job_id = job_of(OTHERS)
        agent = owner.agent(job_id, 1)
        token = await token_of(agent, owner)
        stub = barrier_service_pb2_grpc.BarrierServiceStub(first.channel)
        arrive = barrier_service_pb2.ArriveRequest(
            job_id=job_id,
            name="b",
            participant=barrier_service_pb2.Participant(name="x"),
            expected=barrier_service_pb2.Expected(
                participants=barrier_service_pb2.Participants(names=["x", "y"])
            ),
            request_id="1",
        )

        code, details = await failure_of(
            stub.Arrive(arrive, metadata=((WORKER_TOKEN_KEY, token),), timeout=1)
        )
        assert isinstance(details.own, error_details_pb2.BarrierBroken), (code, details)
        assert list(details.own.missing.names) == ["y"]


async def test_watch_of_a_client_that_goes_ends_at_the_owner() -> None:
    """Its owner forgets a forwarded watch with its client."""
    async with fleet() as made:
        first, owner = made.members
        job_id = job_of(OTHERS)
        await create(first, job_id)
        shard = owner.listening.host.find(OTHERS)
        assert shard is not None
        watchers = shard.services["rallypoint.v1.JobService"]._watchers
        watch = jobs(first).WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id))
        assert (await watch.read()).job.job_id == job_id
        assert watchers.count == 1
        watch.cancel()

        async with asyncio.timeout(LIMIT_S):
            while watchers.count:  # noqa: ASYNC110  # nothing announces it
                await asyncio.sleep(0.01)


async def test_watch_follows_changes_at_the_owner() -> None:
    """Every change of the job arrives, in order."""
    async with fleet() as made:
        first, owner = made.members
        job_id = job_of(OTHERS)
        await create(first, job_id)
        watch = jobs(first).WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id))
        before = await watch.read()
        await jobs(owner).CancelJob(job_service_pb2.CancelJobRequest(job_id=job_id))
        after = await watch.read()

        assert after.revision > before.revision
        assert await watch.read() is grpc.aio.EOF  # the run is over
        assert await watch.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("shard", [MINE, OTHERS])
async def test_watch_ends_when_the_owner_changes(shard: int) -> None:
    """Whether the former owner was this coordinator or another one; the next watch continues."""
    async with fleet() as made:
        first, second = made.members
        job_id = job_of(shard)
        await create(first, job_id)
        watch = jobs(first).WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id))
        await watch.read()
        await made.give(second if shard == MINE else first, shard)

        code, details = await failure_of(watch.read())
        assert code is UNAVAILABLE and details.retry_ms
        again = jobs(first).WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id))
        async with asyncio.timeout(LIMIT_S):
            assert (await again.read()).job.job_id == job_id
        again.cancel()


async def test_call_to_an_owner_that_hangs_ends_with_its_ownership() -> None:
    """Nothing else ends it: the connection stands, and the client has no deadline."""
    async with fleet() as made, hanging() as (address, owner):
        made.table.owners[OTHERS] = address
        made.table.change()
        request = job_service_pb2.GetJobRequest(job_id=job_of(OTHERS))
        call = jobs(made.members[0]).GetJob(request)
        watch = jobs(made.members[0]).WatchJob(
            job_service_pb2.WatchJobRequest(job_id=job_of(OTHERS))
        )
        async with asyncio.timeout(LIMIT_S):
            for _ in range(2):
                await owner.taken.acquire()
        made.table.owners[OTHERS] = made.members[1].address
        made.table.change()

        for one in (call, watch.read()):
            code, details = await failure_of(one)
            assert (code, details.reason) == (UNAVAILABLE, "OWNER_LOST")
            assert details.retry_ms


async def test_owner_that_cannot_be_reached_is_named() -> None:
    """The client tries again: whether the call counted is not known."""
    async with fleet() as made:
        made.table.owners[OTHERS] = "127.0.0.1:1"
        request = job_service_pb2.GetJobRequest(job_id=job_of(OTHERS))

        with pytest.raises(grpc.aio.AioRpcError, match=r"127\.0\.0\.1:1") as failed:
            await jobs(made.members[0]).GetJob(request, timeout=LIMIT_S)
        details = unpack_details(tuple(failed.value.trailing_metadata()))
        assert (failed.value.code(), details.reason) == (UNAVAILABLE, "OWNER_LOST")


async def test_shard_without_an_owner_is_unavailable() -> None:
    """For a moment, until another coordinator takes it."""
    async with fleet() as made:
        await made.take(OTHERS)
        request = job_service_pb2.GetJobRequest(job_id=job_of(OTHERS))

        code, details = await failure_of(jobs(made.members[0]).GetJob(request, timeout=LIMIT_S))
        assert (code, details.reason, details.retry_ms) == (UNAVAILABLE, "NO_OWNER", 500)


async def test_forwarded_call_is_not_forwarded_again() -> None:
    """Two coordinators that take each other for the owner do not call each other for ever."""
    async with fleet() as made:
        first, second = made.members
        await made.take(OTHERS)
        first.seat.believed[OTHERS] = second.address
        second.seat.believed[OTHERS] = first.address
        request = job_service_pb2.GetJobRequest(job_id=job_of(OTHERS))

        for member in (first, second):
            code, details = await failure_of(jobs(member).GetJob(request, timeout=LIMIT_S))
            assert (code, details.reason) == (UNAVAILABLE, "NO_OWNER")


async def test_owner_that_is_not_sure_answers_nothing() -> None:
    """Another coordinator may own the shard already."""
    async with fleet() as made:
        owner = made.members[1]
        await create(owner, job_of(OTHERS))
        owner.seat.sure.clear()
        request = job_service_pb2.GetJobRequest(job_id=job_of(OTHERS))

        code, details = await failure_of(jobs(owner).GetJob(request, timeout=LIMIT_S))
        assert code is UNAVAILABLE and details.retry_ms


async def test_jobs_survive_a_move() -> None:
    """The next owner loads the journal of the shard, and takes a higher epoch."""
    async with fleet() as made:
        first, second = made.members
        await create(first, job_of(OTHERS))
        request = job_service_pb2.GetJobRequest(job_id=job_of(OTHERS))
        before = await jobs(first).GetJob(request, timeout=LIMIT_S)
        await made.give(first, OTHERS)

        for member in (first, second):
            after = await jobs(member).GetJob(request, timeout=LIMIT_S)
            assert after.job.spec == before.job.spec


async def test_ending_coordinator_ends_what_it_has_forwarded() -> None:
    """The client goes elsewhere. A call that the server cancels would look like the client's."""
    table = Table()
    settings = ShardSettings(Timing(window_ms=0), announces=False)
    request = job_service_pb2.GetJobRequest(job_id=job_of(OTHERS))
    async with hanging() as (address, owner), AsyncExitStack() as stack:
        table.owners[OTHERS] = address
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        seat = Seat(table)
        async with hosting("127.0.0.1:0", seat, settings, _load, failed) as listening:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{listening.port}")
            await stack.enter_async_context(channel)
            call = job_service_pb2_grpc.JobServiceStub(channel).GetJob(request)
            async with asyncio.timeout(LIMIT_S):
                await owner.taken.acquire()

        code, details = await failure_of(call)
        assert (code, details.reason) == (UNAVAILABLE, "OWNER_LOST")


def _load(claim: Claim) -> Journal:
    pytest.fail(f"shard {claim.shard} is loaded")


async def test_coordinator_that_stood_still_forwards_nothing_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waited in its connections is old: its client has asked another one, and has gone on."""
    now_s = 100.0
    monkeypatch.setattr(forwarding, "now_s", lambda: now_s)
    async with fleet() as made:
        first = made.members[0]
        await create(first, job_of(OTHERS))
        request = job_service_pb2.CancelJobRequest(job_id=job_of(OTHERS))
        now_s += STILL_S + 0.1
        code, details = await failure_of(jobs(first).CancelJob(request, timeout=LIMIT_S))
        assert (code, details.reason) == (UNAVAILABLE, "NO_OWNER") and details.retry_ms == 500
        assert await failure_of(jobs(first).ListJobs(job_service_pb2.ListJobsRequest()))

        now_s += WARY_S
        asked = job_service_pb2.GetJobRequest(job_id=job_of(OTHERS))
        answer = await jobs(first).GetJob(asked, timeout=LIMIT_S)
        assert answer.job.job_id == asked.job_id
