"""Nodes come and go under agents of torch, and workers fail: all nodes restart together."""

from typing import Any

import pytest

from rallypoint.v1 import job_pb2
from support.processes.mailbox import Worker
from support.processes.world import NEW, World
from support.torchrun.agents import Agent, TorchJob

pytestmark = pytest.mark.long

PROMPT = {"last_call_timeout": 1}
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


def test_job_grows(world: World) -> None:
    """A second and a third node join a job of one; growth costs no restart."""
    job = TorchJob(world, nodes=(1, 3), config=PROMPT)
    job.start(A)
    first = job.round(1)
    job.start(B)
    second = job.round(2, first)
    assert names(second) == ["a", "b"]
    job.start(C)
    third = job.round(3, [*first, *second])

    assert names(third) == ["a", "b", "c"]
    assert third[0].argv[-1] == "a", "a node that stays keeps its rank"
    finish(job, third)


@pytest.mark.nightly
def test_survivors_of_a_lost_node_restart(world: World) -> None:
    """The survivors restart at once though none of their workers fails; then a new node joins."""
    job = TorchJob(world, nodes=(2, 3), config=PROMPT)
    job.start(A, B, C)
    first = job.round(3)
    lost = first[0].argv[-1]
    job.kill_node(lost)  # the one that hosts the workers' store
    second = job.round(2, first)

    assert names(second) == sorted({"a", "b", "c"} - {lost})
    job.start(D)
    third = job.round(3, [*first, *second])
    assert names(third) == [*names(second), "d"]
    finish(job, third)


@pytest.mark.nightly
def test_two_agents_fail_at_once(world: World) -> None:
    """Two of four nodes are lost in the same moment; the other two continue."""
    job = TorchJob(world, nodes=(2, 4), config=PROMPT)
    job.start(A, B, C, D)
    first = job.round(4)
    job.kill_node("b")
    job.kill_node("d")
    second = job.round(2, first)

    assert names(second) == ["a", "c"]
    finish(job, second)


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


@pytest.mark.nightly
def test_restarts_are_used_up(world: World) -> None:
    """Workers fail more often than --max-restarts permits: every agent ends, none hangs."""
    job = TorchJob(world, nodes=(2, 2), max_restarts=1)
    job.start(A, B)
    first = job.round(2)
    first[1].tell("exit", "5")
    second = job.round(2, first)
    loser, other = second[1].argv[-1], second[0].argv[-1]
    second[1].tell("exit", "6")

    assert job.end(loser) == {"result": "FAILED", "failures": {"1": 6}}
    assert job.end(other)["error"] == "RendezvousClosedError"


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


@pytest.mark.nightly
@pytest.mark.usefixtures("forgetful")
def test_coordinator_is_killed_and_comes_back(world: World) -> None:
    """The workers run through the outage of the coordinator; then a node is lost, as ever."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    job = TorchJob(world, nodes=(1, 2), config=PROMPT)
    job.start(A, B)
    first = job.round(2)
    coordinator.kill()
    coordinator = world.coordinator(port)
    coordinator.wait_event("round_adopted")

    assert len(world.mailbox.started()) == 2
    job.kill_node("b")
    second = job.round(1, first)
    assert names(second) == ["a"]
    finish(job, second)
