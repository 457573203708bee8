"""A helper process that stands still is noticed, named and replaced, and keeps no worker alive."""

import os
import signal

from rallypoint.v1 import job_pb2
from support.machines.proxy import Proxy
from support.processes.processes import Witness
from support.processes.world import World

FENCE = ("--fence-after=4", "--shutdown-timeout=1")


def names_the_helper(job: job_pb2.Job) -> bool:
    return "helper process" in job.waiting.text


def test_fence_holds_without_the_helper(world: World) -> None:
    """The agent ends a helper that does not carry out the fence, and with it the workers."""
    with Proxy(world.target) as proxy:
        peer = world.agent("a", *FENCE, nnodes="1:2")
        world.mailbox.workers(1)
        world.target = proxy.address
        cut_off = world.agent("b", *FENCE, nnodes="1:2")
        both = world.mailbox.workers(2, round=2)
        os.kill(both[1].parent, signal.SIGSTOP)
        proxy.fall_silent()
        (alone,) = world.mailbox.workers(1, round=3)

        assert both[1].pid not in world.marked()
        assert alone.node == "a"
        (silent,) = cut_off.events("helper_killed")
        assert silent["pid"] == both[1].parent
        proxy.speak()
        again = world.mailbox.workers(2, round=4)
        assert again[1].parent != both[1].parent
        for worker in again:
            worker.tell("exit", "0")
        assert [peer.wait(), cut_off.wait()] == [0, 0]


def test_stop_does_not_wait_for_a_frozen_helper(world: World) -> None:
    """The job says what it waits for; then the helper is replaced, and the next round has all."""
    agents = [
        world.agent(name, "--shutdown-timeout=5", "--max-restarts=3", nnodes="2") for name in "ab"
    ]
    both = world.mailbox.workers(2)
    witness = Witness()
    witness.watch(both[1].pid, both[1].parent)
    os.kill(both[1].parent, signal.SIGSTOP)
    both[0].tell("exit", "1")
    waiting = world.jobs.wait(world.job_id, names_the_helper).waiting
    again = world.mailbox.workers(2, round=2)

    assert f"b (its helper process {both[1].parent} does not answer)" in waiting.text
    assert witness.await_deaths() == []
    assert again[1].parent != both[1].parent
    assert agents[1].events("helper_killed")
    for worker in again:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]
    witness.close()
