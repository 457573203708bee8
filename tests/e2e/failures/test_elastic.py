"""One torch job that shrinks, grows and restarts: real processes, real collectives."""

import os
import signal

import pytest

from rallypoint.v1 import round_pb2, verdict_pb2
from support.processes.commands import Command
from support.processes.jobs import is_started, node
from support.processes.mailbox import Worker
from support.processes.world import WORKERS, World

FLAGS = ("--max-restarts=1", "--shutdown-timeout=5")


def start(world: World, name: str) -> Command:
    script = [str(WORKERS / "allreduce.py")]
    return world.agent(name, *FLAGS, nnodes="1:3", nproc=2, script=script)


def await_round(world: World, round: int, count: int) -> list[Worker]:
    """Wait until the workers of a round have done an all-reduce; return them by rank."""
    workers = world.mailbox.workers(count, round=round)
    pids = {worker.pid for worker in workers}
    for pid in pids:
        assert world.mailbox.wait("reduced", pid=pid)[0].fields["sum"] == sum(range(count + 1))
    return workers


def places(workers: list[Worker]) -> list[tuple[int, str]]:
    return [(worker.rank, worker.node) for worker in workers]


@pytest.mark.long
def test_a_job_loses_a_worker_and_a_node_and_gains_a_node(world: World) -> None:
    """A dead worker is charged, a lost node is not, a new node joins; then the budget is spent.

    Two nodes with two workers each; ranks stay as long as their nodes do.
    """
    a = start(world, "a")
    a.wait_event("coordinator_reached")
    world.mailbox.workers(2)
    b = start(world, "b")
    first = await_round(world, 2, 4)

    first[3].kill()
    second = await_round(world, 3, 4)
    assert places(first) == places(second) == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    assert [worker.restart_count for worker in second] == [1] * 4
    assert not {worker.pid for worker in first} & {worker.pid for worker in second}

    b.signal(signal.SIGKILL)
    third = await_round(world, 4, 2)
    assert places(third) == [(0, "a"), (1, "a")]
    assert [worker.restart_count for worker in third] == [1, 1]
    assert not any(os.path.exists(f"/proc/{worker.pid}") for worker in second[2:])
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 4))
    assert job.round.header.reason == round_pb2.ROUND_REASON_NODE_LOST
    assert (job.verdict.cause, job.verdict.node_name) == (verdict_pb2.VERDICT_CAUSE_NODE_LOST, "b")

    c = start(world, "c")
    fourth = await_round(world, 5, 4)
    assert places(fourth) == [(0, "a"), (1, "a"), (2, "c"), (3, "c")]
    assert [worker.restart_count for worker in fourth] == [1] * 4

    fourth[2].kill()
    assert [a.wait(), c.wait()] == [1, 1]
    for agent in (a, c):
        assert "  node      : c" in agent.said()
        assert "  rank      : 2 (local_rank: 0)" in agent.said()
        assert f"  exitcode  : -9 (pid: {fourth[2].pid}) (SIGKILL)" in agent.said()
        assert "no restarts are left" in agent.stderr()
    job = world.jobs.get(world.job_id)
    assert node(job, "c").name == ""
    assert world.left() == []
