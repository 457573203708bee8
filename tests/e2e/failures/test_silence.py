"""Frozen processes: no stream breaks, so only the lease reveals them."""

import signal

import pytest

from rallypoint.v1 import round_pb2
from rallypoint.wire.durations import to_ms
from support.processes.jobs import is_started, node, pids
from support.processes.world import World

COMMON_LEASE_MS = 5_000
"""Of a job that asks for none."""


@pytest.fixture
def world(world: World) -> World:
    """Its jobs have the lease that a coordinator gives, unless they ask for another."""
    world.patience = ()
    return world


def test_frozen_agent_is_lost_and_comes_back(world: World) -> None:
    """After the lease its peer continues alone, uncharged; thawed, it rejoins."""
    peer = world.agent("a", nnodes="1:2")
    world.mailbox.workers(1)
    frozen = world.agent("b", nnodes="1:2")
    both = world.mailbox.workers(2, round=2)
    frozen.signal(signal.SIGSTOP)
    (alone,) = world.mailbox.workers(1, round=3)
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 3))

    assert (alone.node, alone.env["WORLD_SIZE"], alone.restart_count) == ("a", "1", 0)
    assert job.round.header.reason == round_pb2.ROUND_REASON_NODE_LOST
    assert "silent for longer than its lease" in job.verdict.text
    assert both[1].pid in world.marked()
    frozen.signal(signal.SIGCONT)
    again = world.mailbox.workers(2, round=4)
    assert [(worker.rank, worker.node) for worker in again] == [(0, "a"), (1, "b")]
    assert both[1].pid not in world.marked()
    for worker in again:
        worker.tell("exit", "0")
    assert [peer.wait(), frozen.wait()] == [0, 0]


@pytest.mark.long  # gRPC closes a connection after 50 s without an answer
@pytest.mark.timeout(300)
def test_long_lease_outlives_the_connection(world: World) -> None:
    """A frozen agent keeps its place when its connection is closed, and its workers run on."""
    agents = [world.agent(name, "--lease=600", nnodes="2") for name in ("a", "b")]
    workers = world.mailbox.workers(2)
    before = world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    agents[1].signal(signal.SIGSTOP)
    apart = world.jobs.wait(world.job_id, lambda job: not node(job, "b").attached)
    assert to_ms(node(apart, "b").silent_for) > COMMON_LEASE_MS
    agents[1].signal(signal.SIGCONT)
    agents[1].wait_event("coordinator_reached_again")
    after = world.jobs.wait(world.job_id, lambda job: node(job, "b").attached)

    assert (after.round.header, pids(after)) == (before.round.header, pids(before))
    for worker in workers:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]
