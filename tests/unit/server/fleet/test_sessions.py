"""Streams of agents, and the health of a coordinator, when several share a store."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_service_pb2, job_service_pb2_grpc
from rallypoint.wire.errors import Details, unpack_details
from support.core.served import LIMIT_S, Agent
from support.routing.fleet import STORE, fleet, job_of

MINE, OTHERS = 0, 1
"""A shard of the first coordinator, and one of the second."""
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


async def ending(agent: Agent) -> tuple[grpc.StatusCode, Details]:
    """Return how the stream of an agent ends."""
    code, _ = await agent.ending()
    return code, unpack_details(tuple(await agent.call.trailing_metadata()))


async def test_agent_learns_who_owns_its_job() -> None:
    """From the first message: its stream has no effect."""
    async with fleet() as made:
        first, owner = made.members
        agent = first.agent(job_of(OTHERS), 1)
        await agent.hello()

        code, details = await ending(agent)
        assert (code, details.reason) == (UNAVAILABLE, "NOT_OWNER")
        assert details.own == details_pb2.NotOwner(address=owner.address, coordinator_id=STORE)


async def test_agent_of_a_shard_without_an_owner_tries_again() -> None:
    """Whichever coordinator it asks."""
    async with fleet() as made:
        await made.take(OTHERS)
        for member in made.members:
            agent = member.agent(job_of(OTHERS), 1)
            await agent.hello()

            code, details = await ending(agent)
            assert (code, details.reason, details.retry_ms) == (UNAVAILABLE, "NO_OWNER", 500)


async def test_owner_is_not_sent_to_itself() -> None:
    """While it loads a shard, or is not sure of it, its agents wait."""
    async with fleet() as made:
        owner = made.members[1]
        owner.seat.sure.clear()
        agent = owner.agent(job_of(OTHERS), 1)
        await agent.hello()

        code, details = await ending(agent)
        assert (code, details.reason) == (UNAVAILABLE, "NO_OWNER")


async def test_hello_that_breaks_the_contract_is_refused_by_the_owner() -> None:
    """With the field at fault, as by a single coordinator."""
    async with fleet() as made:
        agent = made.members[0].agent(job_of(MINE), 1)
        await agent.hello(local_world_size=5_000)

        code, details = await ending(agent)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.field == "hello.local_world_size"


async def test_first_message_without_a_job_is_refused() -> None:
    """By the owner of the shard that the empty id would have."""
    async with fleet(1) as made:
        agent = made.members[0].agent("", 1)
        await agent.write(agent_pb2.SessionRequest(heartbeat=agent_pb2.Heartbeat(number=1)))

        code, _ = await ending(agent)
        assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_session_resumes_with_the_next_owner() -> None:
    """With the token that the former owner gave: they have the same secret."""
    async with fleet() as made:
        first, second = made.members
        agent = await second.join(job_of(OTHERS), 1)
        await made.give(first, OTHERS)
        code, details = await ending(agent)
        assert code is UNAVAILABLE and details.retry_ms
        again = first.agent(job_of(OTHERS), 1)
        again.connection, again.epoch, again.token = 2, agent.epoch, agent.token
        await again.hello()

        welcome = (await again.read()).welcome
        assert welcome.coordinator_id == STORE
        assert again.epoch > agent.epoch


async def test_owner_that_is_not_sure_answers_no_heartbeat() -> None:
    """It has stood still, perhaps, and nothing has halted the shard yet."""
    async with fleet() as made:
        owner = made.members[1]
        agent = await owner.join(job_of(OTHERS), 1)
        await agent.check_alive()
        owner.seat.sure.clear()
        beat = agent_pb2.Heartbeat(number=agent.beats + 1)
        await agent.write(agent_pb2.SessionRequest(heartbeat=beat))

        with pytest.raises(grpc.aio.AioRpcError) as ended:
            while True:
                answer = await agent.read()
                assert not answer.HasField("acknowledgement")
        assert ended.value.code() is UNAVAILABLE


async def test_watch_of_an_owner_that_is_not_sure_shows_nothing_new() -> None:
    """The next owner may decide otherwise."""
    async with fleet() as made:
        owner, job_id = made.members[1], job_of(OTHERS)
        agent = await owner.join(job_id, 1)
        stub = job_service_pb2_grpc.JobServiceStub(owner.channel)
        watch = stub.WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id))
        async with asyncio.timeout(LIMIT_S):
            await watch.read()
            owner.seat.sure.clear()
            await agent.report(started=agent_pb2.Started(round=agent.round, pids=[7]))
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await watch.read()

        assert ended.value.code() is UNAVAILABLE


async def test_health_follows_the_store() -> None:
    """A coordinator that cannot reach the store knows no owners: others should be asked."""
    kinds = health_pb2.HealthCheckResponse
    async with fleet(1) as made, asyncio.timeout(LIMIT_S):
        stub = health_pb2_grpc.HealthStub(made.members[0].channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        seen = [(await watch.read()).status]
        for can_reach in (False, True):
            made.table.can_reach = can_reach
            made.table.change()
            seen.append((await watch.read()).status)
        watch.cancel()

        assert seen == [kinds.SERVING, kinds.NOT_SERVING, kinds.SERVING]
