"""A session is resumed with the token of its Welcome, and with nothing else."""

from __future__ import annotations

import re

import grpc
import pytest
from structlog.testing import capture_logs

from rallypoint.server.rpc.guards.tokens import ResumeTokens
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from support.core.served import Agent, Served, served

OTHERS = ResumeTokens()
"""Tokens of another coordinator."""
NUMBER_MAX = 2**53 - 1


async def steal(server: Served, agent: Agent, token: str, connection: int) -> tuple[str, str]:
    """Say Hello with everything but the agent's token; return how that stream ended."""
    thief = agent.again(server, token=token)
    thief.connection = connection
    await thief.hello()
    code, text = await thief.ending()
    return code.name, text


@pytest.mark.parametrize("connection", [1, 2, NUMBER_MAX])
@pytest.mark.parametrize(
    "token", ["", OTHERS.make(f"{1:032x}"), "0" * 64], ids=["none", "of another", "wrong"]
)
async def test_session_cannot_be_taken_over(token: str, connection: int) -> None:
    """Its id is not enough, whatever the number of the connection: its stream stays open."""
    async with served() as server:
        agent = await server.join("job", 1)
        await agent.check_alive()
        stolen = await steal(server, agent, token, connection)
        await agent.check_alive()
        jobs = service_grpc.JobServiceStub(server.channel)
        (node,) = (await jobs.GetJob(service_pb2.GetJobRequest(job_id="job"))).job.nodes

    assert node.attached
    if connection == 1:
        assert stolen == ("ABORTED", "connection 1 is older than connection 1 of the same agent")
    else:
        refusal = "only the token of its Welcome resumes this session"
        assert ("PERMISSION_DENIED", refusal) == stolen


async def test_token_resumes_a_session() -> None:
    """The connection before ends."""
    async with served() as server:
        agent = await server.join("job", 1)
        await agent.check_alive()
        again = agent.again(server)
        await again.hello()
        welcome = (await again.read()).welcome
        await again.check_alive()
        replaced, _ = await agent.ending()

    assert agent.token == welcome.resume_token
    assert re.fullmatch("[0-9a-f]{64}", agent.token)
    assert grpc.StatusCode.ABORTED is replaced


async def test_lost_welcome_locks_nobody_out() -> None:
    """An agent that never got one has no token; it has only sent Hello."""
    async with served() as server:
        agent = await server.join("job", 1)
        again = agent.again(server, token="")
        await again.hello()
        await again.read()
        await again.check_alive()


async def test_other_coordinator_needs_no_token() -> None:
    """It does not know the session, so there is nothing to take over."""
    async with served() as server:
        agent = server.agent("job", 1)
        agent.token = OTHERS.make(agent.session_id)
        await agent.hello()
        await agent.read()
        await agent.check_alive()


async def test_token_is_never_logged() -> None:
    """Neither when it is taken, nor when another one is refused."""
    with capture_logs() as lines:
        async with served() as server:
            agent = await server.join("job", 1)
            await agent.check_alive()
            wrong = "f" * 64
            await steal(server, agent, wrong, 2)
            again = agent.again(server)
            await again.hello()
            await again.check_alive()

    assert "not proven" in {line.get("why") for line in lines}
    assert not [line for line in lines if agent.token in str(line) or wrong in str(line)]


def test_tokens_belong_to_one_session_and_one_coordinator() -> None:
    """They cannot be guessed."""
    tokens = ResumeTokens()
    token = tokens.make("a")

    assert tokens.is_proof("a", token)
    assert not tokens.is_proof("b", token)
    assert not OTHERS.is_proof("a", token)
    assert not tokens.is_proof("a", "")
