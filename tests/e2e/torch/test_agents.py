"""Agents of torch itself under our rendezvous handler: sizes, roles, and ends that lie apart."""

from collections import Counter
from typing import Any

import pytest

from rallypoint.v1 import job_pb2
from support.processes.mailbox import Worker
from support.processes.world import World
from support.torchrun.agents import Agent, TorchJob

pytestmark = pytest.mark.long

SUCCEEDED = "SUCCEEDED"


def check_places(workers: list[Worker], agents: list[Agent]) -> None:
    """Check every variable about places: of ranks, roles and nodes."""
    total = sum(agent.workers for agent in agents)
    names = [worker.argv[-1] for worker in workers]
    assert Counter(names) == {agent.name: agent.workers for agent in agents}
    assert [worker.rank for worker in workers] == list(range(total))
    assert {worker.env["GROUP_WORLD_SIZE"] for worker in workers} == {str(len(agents))}
    groups = [int(worker.env["GROUP_RANK"]) for worker in workers]
    assert groups == sorted(groups) and set(groups) == set(range(len(agents)))
    roles = {agent.name: agent.role for agent in agents}
    of_role = Counter(roles[name] for name in names)
    ranks: dict[str, list[int]] = {}
    for worker, name in zip(workers, names, strict=True):
        role = roles[name]
        assert worker.env["ROLE_NAME"] == role
        assert worker.env["ROLE_WORLD_SIZE"] == str(of_role[role])
        ranks.setdefault(role, []).append(int(worker.env["ROLE_RANK"]))
    assert ranks == {role: list(range(count)) for role, count in of_role.items()}
    of_node: dict[str, list[int]] = {}
    for worker, name in zip(workers, names, strict=True):
        of_node.setdefault(name, []).append(int(worker.env["LOCAL_RANK"]))
    assert of_node == {agent.name: list(range(agent.workers)) for agent in agents}


def succeed(job: TorchJob, workers: list[Worker], agents: list[Agent]) -> None:
    """Let all workers end well; check what each agent returns."""
    for worker in workers:
        worker.tell("exit", "0")
    for agent in agents:
        ranks = [worker.rank for worker in workers if worker.argv[-1] == agent.name]
        assert job.end(agent.name) == {"result": SUCCEEDED, "ranks": ranks}


def test_roles_over_seven_agents(world: World) -> None:
    """Seven agents of different sizes and three roles: every rank exists once, of each kind."""
    sizes = {"a": 1, "b": 2, "c": 3, "d": 1, "e": 2, "f": 4, "g": 1}
    roles = ("trainer", "reader", "trainer", "ps", "reader", "ps", "trainer")
    agents = [
        Agent(name, count, role) for (name, count), role in zip(sizes.items(), roles, strict=True)
    ]
    job = TorchJob(world, nodes=(7, 7))
    job.start(*agents)
    workers = job.round(14)

    check_places(workers, agents)
    succeed(job, workers, agents)


@pytest.mark.nightly
def test_twenty_jobs_on_one_coordinator(world: World) -> None:
    """Twenty jobs of two nodes at once do not mix, and each has its own outcome."""
    jobs = [f"{world.job_id}-{number}" for number in range(20)]
    agents = [Agent(f"{run}-{name}", 1, run_id=run) for run in jobs for name in "ab"]
    job = TorchJob(world, nodes=(2, 2))
    job.start(*agents)
    for number, run in enumerate(jobs):
        workers = job.round(2, TORCHELASTIC_RUN_ID=run)
        assert {worker.argv[-1] for worker in workers} == {f"{run}-a", f"{run}-b"}
        for worker in workers:
            worker.tell("exit", "7" if number % 2 else "0")
    for number, run in enumerate(jobs):
        for name in "ab":
            assert job.end(f"{run}-{name}")["result"] == ("FAILED" if number % 2 else SUCCEEDED)


SHORT_LEASE = {"keep_alive_interval": 1, "keep_alive_max_attempt": 2}
A, B, C = (Agent(name) for name in "abc")


def names(workers: list[Worker]) -> list[str]:
    return sorted(worker.argv[-1] for worker in workers)


def test_two_workers_fail_at_once(world: World) -> None:
    """Workers of two nodes fail in the same moment; all nodes restart, and the job succeeds."""
    job = TorchJob(world, nodes=(3, 3), max_restarts=2)
    job.start(A, B, C)
    first = job.round(3)
    for worker in first[1:]:
        worker.tell("exit", "1")
    second = job.round(3, first)

    assert names(second) == ["a", "b", "c"]
    succeed(job, second, [A, B, C])


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
