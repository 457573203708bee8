"""The agent in Node.js when its connection breaks, or its coordinator is gone."""

from __future__ import annotations

import signal

import pytest

from support.languages.nodejs_client import Client
from support.machines.proxy import Proxy
from support.processes.jobs import is_started
from support.processes.world import NEW, World


@pytest.mark.long
def test_every_restart_is_charged_once_while_connections_break(
    world: World, client: Client
) -> None:
    """Breaks around a failure, its report and the stop neither lose nor repeat anything."""
    restarts = 8
    policies = ("--crash-loop=0", "--quarantine-after=0")
    python = world.agent("a", f"--max-restarts={restarts}", *policies, nnodes="2")
    with Proxy(world.target) as proxy:
        direct, world.target = world.target, proxy.address
        spec = {"maxRestarts": restarts, "crashLoop": 0, "quarantineAfter": 0}
        nodejs = client.join(world, "b", spec=spec)
        world.target = direct
        for number in range(1, restarts + 1):
            workers = world.mailbox.workers(2, round=number)
            if number % 2:
                proxy.cut()
            workers[number % 4 // 2].kill()
            proxy.cut()
        last = world.mailbox.workers(2, round=restarts + 1)

        assert [worker.restart_count for worker in last] == [restarts, restarts]
        assert len(world.mailbox.started()) == 2 * (restarts + 1)
        for worker in last:
            worker.tell("exit", "0")
        assert [python.wait(), nodejs.wait()] == [0, 0]


@pytest.mark.nightly
def test_failure_without_a_coordinator_is_reported_later(world: World, client: Client) -> None:
    """The Hello to the next coordinator has the exit; the failure is charged once."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    python = world.agent("a", "--max-restarts=1", nnodes="2")
    nodejs = client.join(world, "b", spec={"maxRestarts": 1})
    first = world.mailbox.workers(2)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    coordinator.kill()
    nodejs.wait_text("agent: no coordinator")
    culprit = next(worker for worker in first if worker.node == "b")
    culprit.kill()
    world.coordinator(port)
    python.wait_event("coordinator_reached_again")
    second = world.mailbox.workers(2, round=2)
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))

    assert (job.restart_count, job.verdict.culprit.pid) == (1, culprit.pid)
    for worker in second:
        worker.tell("exit", "0")
    assert [python.wait(), nodejs.wait()] == [0, 0]


@pytest.mark.long
def test_lost_node_comes_back(world: World, client: Client) -> None:
    """An agent that was suspended for longer than its lease stops its workers and joins again."""
    world.patience = ("--lease=1.5",)
    python = world.agent("a", nnodes="1:2")
    world.mailbox.workers(1)
    nodejs = client.join(world, "b", nnodes="1:2", spec={"lease": "1.5s"})
    old = next(one for one in world.mailbox.workers(2, round=2) if one.node == "b")
    nodejs.signal(signal.SIGSTOP)
    world.mailbox.workers(1, round=3)
    nodejs.signal(signal.SIGCONT)
    last = world.mailbox.workers(2, round=4)

    assert {worker.node for worker in last} == {"a", "b"}
    assert old.pid not in world.marked()
    for worker in last:
        worker.tell("exit", "0")
    assert [python.wait(), nodejs.wait()] == [0, 0]


def test_gives_up_without_a_coordinator(world: World, client: Client) -> None:
    """It exits with 75 after its coordinator timeout."""
    world.target = f"127.0.0.1:{world.ports.reserve()}"
    nodejs = client.join(world, "b", "--coordinator-timeout=0.5")

    assert nodejs.wait() == 75
    assert "agent: no coordinator answered in time" in nodejs.said()
