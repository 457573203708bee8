"""Processes that stand still instead of dying: no stream breaks, only the lease tells."""

import signal

from rallypoint.v1 import round_pb2
from support.jobs import is_started
from support.world import World


def test_frozen_agent_is_lost_and_comes_back(world: World) -> None:
    """After the lease its peer goes on alone, uncharged; awake, it drops its workers, rejoins."""
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
