"""Agents of torch with different numbers of workers and roles, under our rendezvous handler."""

from collections import Counter

import pytest

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
