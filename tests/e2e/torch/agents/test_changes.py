"""Nodes come and go under agents of torch, and workers fail: all nodes restart together."""

from typing import Any

import pytest

from rallypoint.v1 import job_pb2
from support.processes.mailbox import Worker
from support.processes.world import World
from support.torchrun.agents import Agent, TorchJob

pytestmark = pytest.mark.long

SHORT_LEASE = {"keep_alive_interval": 1, "keep_alive_max_attempt": 2}
A, B, C, D = (Agent(name) for name in "abcd")


def names(workers: list[Worker]) -> list[str]:
    return sorted(worker.argv[-1] for worker in workers)


def finish(job: TorchJob, workers: list[Worker]) -> None:
    """Let all workers end well, and their agents."""
    for worker in workers:
        worker.tell("exit", "0")
    for worker in workers:
        assert job.end(worker.argv[-1])["result"] == "SUCCEEDED"


def test_two_workers_fail_at_once(world: World) -> None:
    """Workers of two nodes fail in the same moment; all nodes restart, and the job succeeds."""
    job = TorchJob(world, nodes=(3, 3), max_restarts=2)
    job.start(A, B, C)
    first = job.round(3)
    for worker in first[1:]:
        worker.tell("exit", "1")
    second = job.round(3, first)

    assert names(second) == ["a", "b", "c"]
    finish(job, second)


SECONDS_APART = """
import os, sys, time
if sys.argv[1] == "b":
    time.sleep(8)
    sys.exit(int(os.environ["LATE_CODE"]))
"""
"""The worker of agent b ends long after that of agent a: longer than the lease and any poll."""


def end_apart(world: World, late_code: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run two workers that end eight seconds apart; return what their agents say."""
    job = TorchJob(
        world,
        nodes=(2, 2),
        script=("-c", SECONDS_APART),
        env={"LATE_CODE": str(late_code)},
        config=SHORT_LEASE,
    )
    job.start(A, B)
    return job.end("a"), job.end("b")


@pytest.mark.nightly
def test_workers_succeed_long_apart(world: World) -> None:
    """A node waits for another one whose workers need longer: both succeed."""
    first, last = end_apart(world, 0)

    assert (first["result"], last["result"]) == ("SUCCEEDED", "SUCCEEDED")


def test_worker_fails_long_after_another_has_succeeded(world: World) -> None:
    """The node whose workers have succeeded is not affected; the other's failure is reported."""
    _, last = end_apart(world, 4)

    assert last["result"] == "FAILED"
    assert list(last["failures"].values()) == [4]
    shown = world.jobs.get(world.job_id)
    assert shown.outcome == job_pb2.OUTCOME_FAILED
