"""After SIGKILL to the coordinator, workers keep running and a new coordinator adopts the round."""

import asyncio
import signal
from typing import Any

import grpc
import pytest

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import job_pb2, node_pb2, round_pb2
from support.core.served import hello_of
from support.processes.commands import Command
from support.processes.jobs import is_started, node, pids
from support.processes.world import NEW, World


@pytest.fixture
def port(world: World) -> int:
    """A port that no other process gets while the coordinator is down, but that it can use."""
    return world.ports.reserve()


@pytest.fixture
def coordinator(world: World, port: int) -> Command:
    return world.coordinator(port, *NEW)


def start_two(world: World) -> list[Command]:
    """Start a job of two nodes with two workers each, and wait until they run."""
    agents = [world.agent(name, "--max-restarts=3", nnodes="2", nproc=2) for name in ("a", "b")]
    world.mailbox.workers(4)
    return agents


def replace_coordinator(world: World, port: int, agents: list[Command]) -> job_pb2.Job:
    """Start a new coordinator at the same port; return the job once it knows the round."""
    world.coordinator(port)
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    return world.jobs.wait(world.job_id, lambda job: job.phase != job_pb2.JOB_PHASE_FORMING)


@pytest.mark.usefixtures("forgetful")
def test_new_coordinator_adopts_the_round_that_runs(
    world: World, coordinator: Command, port: int
) -> None:
    """Round, restart count and pids stay the same, no worker is stopped, and the job continues."""
    agents = start_two(world)
    workers = world.mailbox.workers(4)
    before = world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    coordinator.kill()
    away = [agent.wait_event("coordinator_not_reached") for agent in agents]
    after = replace_coordinator(world, port, agents)

    assert away[0]["why"]
    assert "workers keep running" in away[0]["then"] and "600 s" in away[0]["then"]
    assert after.phase == job_pb2.JOB_PHASE_RUNNING
    assert after.round.header == before.round.header
    assert after.round.members == before.round.members
    assert after.restart_count == before.restart_count
    assert pids(after) == pids(before) == [worker.pid for worker in workers]
    assert len(world.mailbox.started()) == 4
    assert [agent.wait_event("round_continued")["round"] for agent in agents] == [1, 1]

    workers[3].kill()
    again = world.mailbox.workers(4, round=2)
    assert [(worker.rank, worker.node) for worker in again] == [
        (worker.rank, worker.node) for worker in workers
    ]
    assert [worker.restart_count for worker in again] == [1] * 4
    for worker in again:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]


def test_success_while_the_coordinator_is_away_is_reported_later(
    world: World, coordinator: Command, port: int
) -> None:
    """A node that finishes without a coordinator reports to the next one; nothing is rerun."""
    agents = start_two(world)
    workers = world.mailbox.workers(4)
    coordinator.kill()
    agents[0].wait_event("coordinator_not_reached")
    for worker in workers[:2]:
        worker.tell("exit", "0")
    replace_coordinator(world, port, agents)
    world.jobs.wait(world.job_id, lambda job: node(job, "a").state == node_pb2.NODE_STATE_SUCCEEDED)

    for worker in workers[2:]:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]
    assert len(world.mailbox.started()) == 4


def test_failure_while_the_coordinator_is_away_is_charged_once(
    world: World, coordinator: Command, port: int
) -> None:
    """The next coordinator gets the failure, stops the round and starts the next."""
    agents = start_two(world)
    first = world.mailbox.workers(4)
    coordinator.kill()
    agents[1].wait_event("coordinator_not_reached")
    first[2].kill()
    replace_coordinator(world, port, agents)
    second = world.mailbox.workers(4, round=2)
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))

    assert [worker.restart_count for worker in second] == [1] * 4
    assert (job.restart_count, job.round.header.reason) == (
        1,
        round_pb2.ROUND_REASON_WORKER_FAILED,
    )
    assert (job.verdict.culprit.rank, job.verdict.culprit.pid) == (2, first[2].pid)
    for worker in second:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]


def test_node_lost_while_the_coordinator_is_away_ends_the_round_uncharged(
    world: World, coordinator: Command, port: int
) -> None:
    """The next coordinator finds the round incomplete, stops the rest and forms a smaller one."""
    first = world.agent("a", nnodes="1:2")
    world.mailbox.workers(1)
    agents = [first, world.agent("b", nnodes="1:2")]
    workers = world.mailbox.workers(2, round=2)
    coordinator.kill()
    agents[0].wait_event("coordinator_not_reached")
    agents[1].signal(signal.SIGKILL)
    world.coordinator(port)
    last = world.mailbox.workers(1, round=workers[0].round + 1)

    assert [(worker.node, worker.env["WORLD_SIZE"]) for worker in last] == [("a", "1")]
    assert last[0].restart_count == 0
    last[0].tell("exit", "0")
    assert agents[0].wait() == 0


@pytest.mark.parametrize(
    ("nnodes", "code", "text"),
    [
        ("1", 0, "all workers exited with 0; no coordinator answered for 0.5 s"),
        ("2", 75, "all workers here exited with 0, but the job's outcome is unknown: no coordin"),
    ],
)
def test_work_that_ends_without_a_coordinator(
    world: World, coordinator: Command, nnodes: str, code: int, text: str
) -> None:
    """The agents say that the work is done; for a single node that is the job's outcome."""
    names = ("a", "b")[: int(nnodes)]
    agents = [world.agent(name, "--outcome-timeout=0.5", nnodes=nnodes) for name in names]
    workers = world.mailbox.workers(int(nnodes))
    coordinator.kill()
    for agent in agents:
        agent.wait_event("coordinator_not_reached")
    for worker in workers:
        worker.tell("exit", "0")

    assert [agent.wait() for agent in agents] == [code] * len(agents)
    for agent in agents:
        assert agent.wait_event("outcome_awaited")["why"].startswith("all workers here exited")
        assert text in agent.stderr()


def test_coordinator_that_is_told_to_end_ends_with_0(
    world: World, coordinator: Command, port: int
) -> None:
    """SIGTERM to the coordinator stops no worker; an agent can still be stopped meanwhile."""
    agents = start_two(world)
    workers = world.mailbox.workers(4)
    coordinator.signal(signal.SIGTERM)

    assert coordinator.wait(limit_s=5) == 0
    for agent in agents:
        agent.wait_event("coordinator_not_reached")
    assert {worker.pid for worker in workers} <= set(world.marked())
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert [agent.wait(limit_s=5) for agent in agents] == [143, 143]
    assert world.left() == []


async def test_coordinator_that_is_told_to_end_with_many_sessions_ends(
    coordinator: Command, port: int
) -> None:
    """Under gRPC 1.76 it waited without end when so many calls ended with its event loop."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = agent_grpc.AgentServiceStub(channel)
        calls = [stub.Session(timeout=60) for _ in range(400)]
        for number, call in enumerate(calls, 1):
            hello = hello_of(f"j{number % 8}", number)
            await call.write(
                agent_pb2.SessionRequest(hello=hello, session_id=f"{number:032x}", connection=1)
            )
        for call in calls:
            answer: Any = await call.read()
            assert answer.HasField("welcome")
        coordinator.signal(signal.SIGTERM)

        assert await asyncio.to_thread(coordinator.wait, limit_s=30) == 0
