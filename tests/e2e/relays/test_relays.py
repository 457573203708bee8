"""Real agents and workers behind a relay: rounds, failures, and relays that die."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from rallypoint.v1 import round_pb2
from support.processes.commands import Command
from support.processes.jobs import Jobs, is_started, pids
from support.processes.mailbox import Worker
from support.processes.room import Room, start
from support.processes.world import NEW, World
from support.relays.running import direct, is_back, start_relay


@pytest.fixture
def jobs(world: World) -> Iterator[Jobs]:
    """What asks the coordinator itself, whose agents come through relays."""
    world.coordinator(0, *NEW)
    with Jobs(world.target) as asked:
        yield asked


def begin(world: World, *flags: str) -> tuple[list[Command], list[Worker]]:
    """Start a job of two nodes with two workers each, and wait until they run."""
    agents = [
        world.agent(name, "--max-restarts=3", *flags, nnodes="2", nproc=2) for name in ("a", "b")
    ]
    return agents, world.mailbox.workers(4)


def finish(world: World, agents: list[Command], workers: list[Worker]) -> None:
    """Let a worker fail, and then the job succeed."""
    workers[1].kill()
    again = world.mailbox.workers(4, round=2)
    assert [1] * 4 == [worker.restart_count for worker in again]
    for worker in again:
        worker.tell("exit", "0")
    assert [0, 0] == [agent.wait() for agent in agents]
    assert 8 == len(world.mailbox.started())


def test_job_runs_through_a_relay(world: World, jobs: Jobs) -> None:
    """A round, a failure that has a name, the next round, and success; the nodes share a stream."""
    _, address = start_relay(world, world.target)
    direct(world, address)
    agents, workers = begin(world)
    before = world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    workers[2].kill()
    again = world.mailbox.workers(4, round=2)
    after = jobs.wait(world.job_id, lambda job: is_started(job, 2))

    assert [worker.pid for worker in workers] == pids(before)
    assert [1] * 4 == [worker.restart_count for worker in again]
    assert round_pb2.ROUND_REASON_WORKER_FAILED == after.round.header.reason
    assert (2, workers[2].pid) == (after.verdict.culprit.rank, after.verdict.culprit.pid)
    for worker in again:
        worker.tell("exit", "0")
    assert [0, 0] == [agent.wait() for agent in agents]


def test_killed_relay_is_replaced_at_its_port(world: World, jobs: Jobs) -> None:
    """No worker notices: the same round, the same processes, nothing counted, no node lost."""
    port = world.ports.reserve()
    coordinator = world.target
    relay, address = start_relay(world, coordinator, port)
    direct(world, address)
    agents, workers = begin(world)
    before = jobs.wait(world.job_id, lambda job: is_started(job, 1))
    relay.kill()
    for agent in agents:
        agent.wait_event("coordinator_not_reached")
    start_relay(world, coordinator, port)
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    after = jobs.wait(world.job_id, is_back)

    assert before.round.header == after.round.header
    assert pids(before) == pids(after) == [worker.pid for worker in workers]
    assert 0 == after.restart_count
    finish(world, agents, workers)


def test_frozen_relay_costs_no_node(world: World, jobs: Jobs) -> None:
    """It stands still, and so do its connections: its agents find another way in time."""
    coordinator = world.target
    relay, address = start_relay(world, coordinator)
    direct(world, f"{address},{coordinator}")
    world.patience = ()  # the lease that a coordinator gives
    agents, workers = begin(world)
    before = jobs.wait(world.job_id, lambda job: is_started(job, 1))
    relay.signal(signal.SIGSTOP)
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    after = jobs.wait(world.job_id, is_back)

    assert before.round.header == after.round.header
    assert pids(before) == pids(after)
    relay.signal(signal.SIGCONT)
    world.jobs.channel.close()
    world.jobs = Jobs(coordinator)
    finish(world, agents, workers)


def test_workers_share_through_a_relay(world: World, jobs: Jobs) -> None:
    """Barriers, payloads and keys for which others wait: the relay passes every call on."""
    _, address = start_relay(world, world.target)
    direct(world, address)
    _, workers = start(world)
    room = Room(world, workers)

    assert ["ok"] * 4 == room.ask("loop", "5")
    for worker in workers:
        room.tell("gather", f"from {worker.rank}", ranks=[worker.rank])
    assert [[f"from {rank}" for rank in range(4)]] * 4 == room.answers()
    room.tell("get", "address", "60", ranks=[1, 2, 3])
    room.ask("put", "address", "10.0.0.7", ranks=[0])
    assert ["10.0.0.7"] * 3 == room.answers([1, 2, 3])
