"""With --fence-after, workers of an old round are dead before the next round begins."""

import signal

import pytest

from rallypoint.v1 import job_pb2
from support.machines.proxy import Proxy
from support.processes.world import World

FENCE = ("--fence-after=8", "--shutdown-timeout=1")


@pytest.fixture
def world(world: World) -> World:
    """Its jobs have the lease that a coordinator gives, unless they ask for another."""
    world.patience = ()
    return world


def is_fenced(job: job_pb2.Job) -> bool:
    return job.waiting.kind == job_pb2.WAIT_KIND_FENCE


def test_workers_of_a_frozen_agent_die_without_it(world: World) -> None:
    """The helper kills them, even one that ignores TERM; after it thaws, the agent rejoins."""
    peer = world.agent("a", *FENCE, nnodes="1:2")
    world.mailbox.workers(1)
    frozen = world.agent("b", *FENCE, nnodes="1:2")
    both = world.mailbox.workers(2, round=2)
    both[1].tell("TERM", "ignore")
    world.mailbox.wait("ready", pid=both[1].pid)
    frozen.signal(signal.SIGSTOP)
    waiting = world.jobs.wait(world.job_id, is_fenced).waiting
    (alone,) = world.mailbox.workers(1, round=3)

    assert both[1].pid not in world.marked()
    assert [node.name for node in waiting.nodes] == ["b"]
    assert "workers of an older round may still run" in waiting.text
    assert (alone.node, alone.restart_count) == ("a", 0)
    frozen.signal(signal.SIGCONT)
    again = world.mailbox.workers(2, round=4)
    (fell,) = frozen.events("fence_enforced")
    assert (fell["round"], [worker.restart_count for worker in again]) == (2, [0, 0])
    for worker in again:
        worker.tell("exit", "0")
    assert [peer.wait(), frozen.wait()] == [0, 0]


def test_workers_of_an_unreachable_agent_are_stopped(world: World) -> None:
    """The agent itself stops them, gracefully, before the next round begins without it."""
    with Proxy(world.target) as proxy:
        peer = world.agent("a", *FENCE, nnodes="1:2")
        world.mailbox.workers(1)
        world.target = proxy.address
        cut_off = world.agent("b", *FENCE, nnodes="1:2")
        both = world.mailbox.workers(2, round=2)
        both[1].tell("TERM", "obey")
        world.mailbox.wait("ready", pid=both[1].pid)
        proxy.fall_silent()
        cut_off.wait_event("fence_enforced")
        world.mailbox.wait("signalled", pid=both[1].pid)
        (alone,) = world.mailbox.workers(1, round=3)

        assert both[1].pid not in world.marked()
        assert (alone.node, alone.restart_count) == ("a", 0)
        proxy.speak()
        for worker in world.mailbox.workers(2, round=4):
            worker.tell("exit", "0")
        assert [peer.wait(), cut_off.wait()] == [0, 0]
