"""When the network fails and not the nodes, no node is lost and workers keep running."""

import signal

import pytest

from rallypoint.v1 import job_pb2
from support.machines.proxy import Proxy
from support.processes.commands import Command
from support.processes.jobs import is_started, pids
from support.processes.world import NEW, World

ATTEMPTS = 5
"""After so many in vain, an agent's pauses between two have their full length."""


@pytest.fixture
def world(world: World) -> World:
    """Its jobs have the lease that a coordinator gives, unless they ask for another."""
    world.patience = ()
    return world


def start(world: World, count: int, *flags: str) -> tuple[list[Command], job_pb2.Job]:
    """Start agents; return them and the job once all workers of its round run."""
    agents = [world.agent(f"n{number}", *flags, nnodes=str(count)) for number in range(count)]
    world.mailbox.workers(count)
    return agents, world.jobs.wait(world.job_id, lambda job: is_started(job, 1))


def check_unharmed(
    world: World, coordinator: Command, agents: list[Command], before: job_pb2.Job
) -> None:
    """Check that the round and its processes are the same, and let it end."""
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    after = world.jobs.wait(world.job_id, lambda job: all(node.attached for node in job.nodes))

    assert after.phase == job_pb2.JOB_PHASE_RUNNING
    assert (after.round.header, after.restart_count) == (before.round.header, 0)
    assert pids(after) == pids(before)
    assert set(pids(before)) <= set(world.marked())
    assert coordinator.events("node_lost", "round_stopped") == []
    for worker in world.mailbox.started():
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0] * len(agents)
    assert len(world.mailbox.started()) == len(agents)


@pytest.mark.parametrize(
    ("count", "flags"),
    [
        pytest.param(2, (), marks=pytest.mark.long),
        (4, ()),
        pytest.param(2, ("--lease=2.5",), marks=pytest.mark.long),
    ],
)
def test_coordinator_that_stood_still_loses_nobody(
    world: World, count: int, flags: tuple[str, ...]
) -> None:
    """Its agents have given their streams up long since, and come back in their own time."""
    coordinator = world.coordinator(0, *NEW)
    with Proxy(world.target) as proxy:
        world.target = proxy.address
        agents, before = start(world, count, *flags)
        coordinator.signal(signal.SIGSTOP)
        proxy.wait_accepted(count * (1 + ATTEMPTS))
        proxy.cut(refuse_s=1.5)  # so that no agent is connecting when it wakes
        coordinator.signal(signal.SIGCONT)

        check_unharmed(world, coordinator, agents, before)
        (stalled, *_) = coordinator.events("coordinator_stalled")
        assert stalled["late_ms"] > 5_000
