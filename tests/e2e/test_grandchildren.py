"""Descendants of workers that do everything to outlive them: none is left, however it ends.

See workers/brood.py for who they are. They are looked for in three ways: by the mark of the test in
their environment, by the pids that they reported, and by a lock that they share. Twenty agents
each, some at a time; all must be gone within the grace and two seconds.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from support.commands import NODE_AGENT, Command
from support.mailbox import Said, Worker
from support.processes import Witness
from support.terminal import CTRL_C, Terminal
from support.world import WORKERS, World

TIMES, AT_ONCE = 20, 5
GRACE_S, ALLOWED_S = 0.3, 2.0
BROOD = ("session", "daemon", "closed", "scrubbed", "breeder", "comet")
SCRIPT = (str(WORKERS / "brood.py"),)


@pytest.fixture
def witness() -> Iterator[Witness]:
    witness = Witness()
    yield witness
    witness.close()


@dataclass(frozen=True, slots=True)
class Family:
    """An agent with its workers, of which the first has a brood."""

    agent: Command
    parent: Worker
    """The worker with the brood; it dies of signals. The other one ignores them."""
    lock: str
    """The file that the brood has locked."""


def raise_families(world: World, witness: Witness, wave: int) -> list[Family]:
    """Start agents with a job each, and wait until their broods are complete."""
    agents: dict[str, Command] = {}
    for number in range(AT_ONCE):
        job_id = f"{world.job_id}-{wave}-{number}"
        flags = (f"--job-id={job_id}", f"--shutdown-timeout={GRACE_S}")
        agents[job_id] = world.agent(f"a{number}", *flags, nproc=2, script=SCRIPT)
    so_far = (wave + 1) * AT_ONCE
    world.mailbox.wait("started", 2 * so_far)
    born = world.mailbox.wait("brood", len(BROOD) * so_far)
    parents = [
        worker
        for worker in world.mailbox.started()
        if worker.env["RALLYPOINT_JOB_ID"] in agents and worker.rank == 0
    ]

    assert [said.fields["name"] for said in born].count("scrubbed") == so_far
    witness.watch(*find_lasting(born[-len(BROOD) * AT_ONCE :]))
    return [
        Family(agents[job_id], parent, str(world.folder / f"brood-{job_id}"))
        for parent in parents
        for job_id in (parent.env["RALLYPOINT_JOB_ID"],)
    ]


def find_lasting(born: Sequence[Said]) -> set[int]:
    """Return the pids that stay: all but the comet's, which changes all the time."""
    return {said.pid for said in born if said.fields["name"] != "comet"}


def is_lifted(path: str, limit_s: float) -> bool:
    """Wait until nobody holds the lock any more."""

    def wait() -> None:
        fd = os.open(path, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.close(fd)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    waiter.join(max(0.0, limit_s))
    return not waiter.is_alive()


def fail(family: Family) -> None:
    family.parent.tell("exit", "1")


def interrupt(family: Family) -> None:
    family.agent.signal(signal.SIGINT)


def terminate(family: Family) -> None:
    family.agent.signal(signal.SIGTERM)


def kill(family: Family) -> None:
    family.agent.signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [(fail, 1), (interrupt, 130), (terminate, 143), (kill, -9)],
    ids=["worker fails", "SIGINT", "SIGTERM", "SIGKILL"],
)
def test_nothing_outlives_the_end(
    world: World, witness: Witness, end: Callable[[Family], None], exit_code: int
) -> None:
    """All are dead within the grace and two seconds, and the agent has ended as it should."""
    for wave in range(TIMES // AT_ONCE):
        families = raise_families(world, witness, wave)
        assert not any(is_lifted(family.lock, 0) for family in families)
        end_s = time.monotonic() + GRACE_S + ALLOWED_S
        for family in families:
            end(family)

        assert [family.agent.wait() for family in families] == [exit_code] * AT_ONCE
        assert world.left(limit_s=end_s - time.monotonic()) == []
        assert all(is_lifted(family.lock, end_s - time.monotonic()) for family in families)
        assert witness.await_deaths() == []
        assert time.monotonic() < end_s


def test_ctrl_c_in_a_terminal_leaves_nothing(world: World, witness: Witness) -> None:
    """The same for the key in the terminal in whose foreground the agent runs."""
    argv = [
        NODE_AGENT,
        f"--coordinator={world.target}",
        f"--job-id={world.job_id}",
        f"--shutdown-timeout={GRACE_S}",
        "--nproc-per-node=2",
        *SCRIPT,
    ]
    with Terminal(argv, world.env(), world.folder) as terminal:
        world.mailbox.workers(2)
        witness.watch(*find_lasting(world.mailbox.wait("brood", len(BROOD))))
        end_s = time.monotonic() + GRACE_S + ALLOWED_S
        terminal.type(CTRL_C)

        assert terminal.wait() == 130
        assert world.left(limit_s=end_s - time.monotonic()) == []
        assert is_lifted(str(world.folder / f"brood-{world.job_id}"), end_s - time.monotonic())
        assert witness.await_deaths() == []
        assert time.monotonic() < end_s
        assert "the agent got signal 2" in terminal.shown()


def test_nothing_of_a_round_is_there_when_the_next_begins(world: World) -> None:
    """What a new worker sees with its first look: no process and no lock of the round before."""
    rounds = 4
    flags = (f"--max-restarts={rounds}", f"--shutdown-timeout={GRACE_S}", "--crash-loop=0")
    agent = world.agent("a", *flags, nproc=2, script=SCRIPT)
    for number in range(1, rounds + 1):
        workers = world.mailbox.workers(2, round=number)
        world.mailbox.wait("brood", len(BROOD) * number)
        workers[0].tell("exit", "1")
    last = world.mailbox.workers(2, round=rounds + 1)
    elders = world.mailbox.wait("elders", 2 * (rounds + 1))

    assert [said.fields for said in elders] == [{"pids": [], "was_free": True}] * len(elders)
    last[0].tell("exit", "0")
    last[1].tell("exit", "0")
    assert agent.wait() == 0
    assert world.left() == []
