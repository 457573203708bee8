"""Nodes drain again and again under a job that saves on notice: no step is lost."""

from __future__ import annotations

import random
import signal
from functools import partial

import pytest

from support.processes.commands import Command
from support.processes.jobs import is_started, node
from support.processes.mailbox import Worker
from support.processes.world import WORKERS, World
from support.tries.commit import draw

NODES = 4
FLAGS = (
    *("--no-grow", "--drain-signal=USR1", "--shutdown-timeout=5", "--quarantine-after=0"),
    "--max-reformations=1000",
)


def await_spare(world: World, name: str) -> None:
    world.jobs.wait(world.job_id, lambda job: node(job, name).spare)


def last_step(world: World, workers: list[Worker]) -> int:
    """Return the last step that any of these workers has done."""
    pids = {worker.pid for worker in workers}
    steps = [said.fields["step"] for said in world.mailbox.said("stepped") if said.pid in pids]
    return max(steps, default=0)


def drain_one(world: World, number: int, agent: Command) -> tuple[int, int]:
    """Drain a node of a round; return the last step of the round, and the first of the next."""
    workers = world.mailbox.workers(NODES, round=number)
    agent.signal(signal.SIGTERM)
    after = {worker.pid for worker in world.mailbox.workers(NODES, round=number + 1)}

    assert agent.wait() == 128 + signal.SIGTERM
    began = [said.fields for said in world.mailbox.said("started") if said.pid in after]
    assert {fields["env"]["TORCHELASTIC_RESTART_COUNT"] for fields in began} == {"0"}
    # Each has left, or was stopped: none was killed.
    ended = {said.pid for said in world.mailbox.said("left")}
    stops = [one for one in world.mailbox.said("signalled") if one.fields["signum"] == 15]
    ended |= {one.pid for one in stops}
    assert [one.fields["text"] for one in world.mailbox.said("wrong")] == []
    assert [one.node for one in workers if one.pid not in ended] == []
    return last_step(world, workers), min(fields["step"] for fields in began)


@pytest.mark.nightly
@pytest.mark.parametrize(("times", "timeout_s", "more"), [(10, 60, ()), (2, 2, ("stays",))])
def test_no_step_is_lost(world: World, times: int, timeout_s: int, more: tuple[str, ...]) -> None:
    """Workers leave on notice, or run to the end of the time; a spare takes the place each time."""
    chance = random.Random(draw("drains", 10**6))
    script = [str(WORKERS / "counting.py"), str(world.folder / "checkpoint"), *more]
    flags = (*FLAGS, f"--drain-timeout={timeout_s}")
    agents: dict[str, Command] = {}

    def start() -> str:
        name = f"n{len(agents)}"
        agents[name] = world.agent(name, *flags, nnodes=str(NODES), script=script)
        return name

    for _ in range(NODES):
        start()
    for number in range(1, times + 1):
        workers = world.mailbox.workers(NODES, round=number)
        world.jobs.wait(world.job_id, partial(is_started, round=number))
        await_spare(world, start())
        step = last_step(world, workers)
        while last_step(world, workers) < step + 3:
            world.mailbox.wait("stepped", len(world.mailbox.said("stepped")) + 1)
        done, begun = drain_one(world, number, agents[chance.choice(workers).node])

        # A stop may come between a step and its checkpoint.
        assert begun >= done - bool(more)
