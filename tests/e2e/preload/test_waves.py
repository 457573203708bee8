"""Waves of grandchildren of forked workers: none is left, however their agents end.

As in failures/test_grandchildren.py, with agents whose second round was forked from the process
that has forked the first.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import product

import pytest

from support.broods.family import BROOD, GRACE_S, SCRIPT, find_family
from support.preload.room import is_forked
from support.processes.commands import Command
from support.processes.processes import Witness
from support.processes.world import World
from support.tries.commit import choose_long

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
def test_nothing_outlives_forked_workers(
    world: World, witness: Witness, signum: signal.Signals, output: str
) -> None:
    """All are dead within the grace and two seconds, and each rank has existed once."""
    agents = {f"{world.job_id}-{number}": start(world, number, output) for number in range(AT_ONCE)}
    for round in (1, 2):
        world.mailbox.wait("started", 2 * AT_ONCE * round)
        world.mailbox.wait("brood", len(BROOD) * AT_ONCE * round)
        workers = [worker for worker in world.mailbox.started() if worker.round == round]
        assert all(is_forked(worker.pid) for worker in workers)
        if round == 1:
            for worker in workers:
                if worker.rank == 0:
                    worker.tell("exit", "1")
    for job_id, agent in agents.items():
        family = find_family(world, witness, job_id, 2)
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
        "--preload=json",
        "--log-dir=.",
        output,
        nproc=2,
        script=SCRIPT,
    )
