"""Descendants of workers that do everything to outlive them: none is left, however it ends.

See workers/brood.py for who they are. They are looked for in three ways: by the mark of the test in
their environment, by the pids that they reported, and by a lock that they share. Five agents are
ended in each way, five more in the long tests and ten more each night; five live at
a time, but each is ended by itself, and has two seconds beyond the grace until agent, helper,
workers and brood are gone.
"""

from __future__ import annotations

import signal

import pytest

from support.broods.family import BROOD, GRACE_S, SCRIPT, find_family
from support.processes.commands import NODE_AGENT, Command
from support.processes.mailbox import Worker
from support.processes.processes import Witness
from support.processes.terminal import CTRL_C, Terminal
from support.processes.world import World

AT_ONCE = 5
OUTPUTS = ("--tee=0", "--tee=3", "--redirects=3", "--redirects=1")
"""Where output goes: what holds it open must not keep an agent from ending."""
MARKS = ((), pytest.mark.long, pytest.mark.nightly, pytest.mark.nightly)
"""Each run ends agents in each way, and with each output once; more of them have all of both."""


def fail(agent: Command, parent: Worker) -> None:
    parent.tell("exit", "1")


def interrupt(agent: Command, parent: Worker) -> None:
    agent.signal(signal.SIGINT)


def terminate(agent: Command, parent: Worker) -> None:
    agent.signal(signal.SIGTERM)


def kill(agent: Command, parent: Worker) -> None:
    agent.signal(signal.SIGKILL)


ENDS = {"worker fails": (fail, 1), "SIGINT": (interrupt, 130), "SIGTERM": (terminate, 143)}
ENDS["SIGKILL"] = (kill, -9)


@pytest.mark.parametrize(
    ("output", "how"),
    [
        pytest.param(OUTPUTS[at], how, marks=MARKS[shift])
        for shift in range(len(OUTPUTS))
        for at, how in enumerate(ENDS, start=-shift)
    ],
)
def test_nothing_outlives_the_end(world: World, witness: Witness, output: str, how: str) -> None:
    """All are dead within the grace and two seconds, and the agent has ended as it should."""
    end, exit_code = ENDS[how]
    agents: dict[str, Command] = {}
    for number in range(AT_ONCE):
        job_id = f"{world.job_id}-{number}"
        flags = (f"--job-id={job_id}", f"--shutdown-timeout={GRACE_S}", output, "--log-dir=.")
        agents[job_id] = world.agent("a", *flags, nproc=2, script=SCRIPT)
    world.mailbox.wait("started", 2 * AT_ONCE)
    world.mailbox.wait("brood", len(BROOD) * AT_ONCE)
    for job_id, agent in agents.items():
        family = find_family(world, witness, job_id)
        end(agent, family.parent)

        assert family.await_end(agent.wait) == exit_code
    assert world.marked() == []


def test_ctrl_c_in_a_terminal_leaves_nothing(world: World, witness: Witness) -> None:
    """Ctrl-C in the terminal where the agent runs in the foreground leaves nothing."""
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
        world.mailbox.wait("brood", len(BROOD))
        family = find_family(world, witness, world.job_id)
        terminal.type(CTRL_C)

        assert family.await_end(terminal.wait) == 130
        assert world.marked() == []
    assert "interrupted (SIGINT)" in terminal.shown()


def test_nothing_of_a_round_is_there_when_the_next_begins(world: World) -> None:
    """A new worker finds no process and no lock of the round before."""
    rounds = 5
    flags = (f"--max-restarts={rounds}", f"--shutdown-timeout={GRACE_S}", "--crash-loop=0")
    agent = world.agent("a", *flags, nproc=2, script=SCRIPT)
    for number in range(1, rounds):
        workers = world.mailbox.workers(2, round=number)
        world.mailbox.wait("brood", len(BROOD) * number)
        workers[0].tell("exit", "1")
    last = world.mailbox.workers(2, round=rounds)
    elders = [said.fields for said in world.mailbox.wait("elders", 2 * rounds)]

    assert elders == [{"pids": [], "was_free": True}] * (2 * rounds)
    for worker in last:
        worker.tell("exit", "0")
    assert agent.wait() == 0
    assert world.left() == []
