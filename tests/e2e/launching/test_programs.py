"""Who belongs to a job: agents that run the same program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.commands import Command
from support.processes.world import OBEDIENT, World


def copy_of(folder: Path, name: str) -> str:
    """Return the path of a worker's script under another name or in another folder."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.symlink_to(OBEDIENT)
    return str(path)


@pytest.fixture
def alice(world: World) -> Iterator[Command]:
    """The first of two agents; it waits for the second."""
    script = copy_of(world.folder / "a", "alice.py")
    agent = world.agent("a", nnodes="2", script=[script, "--lr", "0.1"])
    agent.wait_event("coordinator_reached")
    yield agent
    assert agent.events("other_arguments_found") == []


def end(world: World, *agents: Command) -> None:
    """Let the workers of two nodes succeed."""
    for worker in world.mailbox.workers(2):
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0] * len(agents)


def test_other_program_is_refused_in_one_line(world: World, alice: Command) -> None:
    """It ends with 2, and learns both programs, both nodes and what to do; the job waits on."""
    other = world.agent("b", nnodes="2", script=[copy_of(world.folder / "b", "bob.py")])

    assert other.wait() == 2
    (line,) = other.said()
    assert line.endswith(
        f"node b runs bob.py, but a of job {world.job_id} runs alice.py: "
        "use another --job-id, or --allow-different-programs"
    )
    assert alice.is_running()
    assert world.mailbox.started() == []
