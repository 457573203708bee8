"""Waves of grandchildren with warm workers: none is left, however their agents end.

As in failures/test_grandchildren.py, with agents whose second round has begun with standbys.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import product

import pytest

from support.broods.family import BROOD, GRACE_S, SCRIPT, find_family
from support.processes.commands import Command
from support.processes.processes import Witness
from support.processes.world import World
from support.tries.commit import choose_long
from support.warm.standbys import TRIES

AT_ONCE = 3
OUTPUTS = ("--tee=3", "--redirects=3")
ENDS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}


@pytest.fixture
def witness() -> Iterator[Witness]:
    witness = Witness()
    yield witness
    witness.close()


@pytest.mark.parametrize(
    ("signum", "output"),
    [
        pytest.param(*case, marks=choose_long("waves", at, 3))
        for at, case in enumerate(product(ENDS, OUTPUTS))
    ],
)
def test_nothing_outlives_warm_workers(
    world: World, witness: Witness, signum: signal.Signals, output: str
) -> None:
    """All are dead within the grace and two seconds, and each rank has existed once."""
    agents = {f"{world.job_id}-{number}": start(world, number, output) for number in range(AT_ONCE)}
    rounds = {job_id: begin_warm_round(world, job_id, agent) for job_id, agent in agents.items()}
    world.mailbox.wait("started", 2 * sum(rounds.values()))
    world.mailbox.wait("brood", len(BROOD) * sum(rounds.values()))
    for job_id, agent in agents.items():
        family = find_family(world, witness, job_id, rounds[job_id])
        agent.signal(signum)

        assert family.await_end(agent.wait) == ENDS[signum]
    assert world.marked() == []


def start(world: World, number: int, output: str) -> Command:
    """Start the agent of another job."""
    return world.agent(
        "a",
        f"--job-id={world.job_id}-{number}",
        f"--shutdown-timeout={GRACE_S}",
        "--max-restarts=50",
        "--crash-loop=0",
        "--warm=json",
        "--log-dir=.",
        output,
        nproc=2,
        script=SCRIPT,
    )


def begin_warm_round(world: World, job_id: str, agent: Command) -> int:
    """Let rounds fail until all workers of one were standbys; return its number."""
    for number in range(1, TRIES + 1):
        agent.wait_event("standbys_ready", count=number)
        first = min(
            (
                worker
                for worker in world.mailbox.started()
                if worker.env["RALLYPOINT_JOB_ID"] == job_id and worker.round == number
            ),
            key=lambda worker: worker.rank,
        )
        first.tell("exit", "1")
        begun = agent.wait_event("warm_started", count=number)
        if begun["workers"] == 2:
            return number + 1
    raise AssertionError(agent.stderr())
