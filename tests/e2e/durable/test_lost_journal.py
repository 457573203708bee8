"""What a lost journal costs: without a backup, and with one that is older than the job's round."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.processes.commands import RALLYPOINT
from support.processes.jobs import is_started
from support.processes.world import NEW, World

FLAGS = ("--last-call=60", "--max-restarts=3")


@pytest.fixture
def port(world: World) -> int:
    """A port that no other process gets while the coordinator is down."""
    return world.ports.reserve()


def lose(state: Path) -> None:
    for file in state.parent.iterdir():
        file.unlink()


def test_running_job_is_refused_without_a_backup(world: World, port: int, tmp_path: Path) -> None:
    """A coordinator with a new journal is another one: the agent stops its workers and exits 1."""
    state = tmp_path / "state" / "journal.sqlite"
    coordinator = world.coordinator(port, f"--state=sqlite:{state}", *NEW)
    agent = world.agent("a", *FLAGS)
    world.mailbox.workers(1)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    coordinator.kill()
    lose(state)
    world.coordinator(port, f"--state=sqlite:{state}", *NEW)

    assert agent.wait() == 1
    assert "the agent holds a round of coordinator" in agent.stderr()
    assert "start that one with its journal, or start this agent again" in agent.stderr()


def test_job_continues_after_an_old_backup(world: World, port: int, tmp_path: Path) -> None:
    """The coordinator does not know the round that runs: it is stopped, and a higher one begins,
    with the restart count of the backup."""
    state, backup = tmp_path / "state" / "journal.sqlite", tmp_path / "backup.jsonl"
    coordinator = world.coordinator(port, f"--state=sqlite:{state}", *NEW)
    agents = [world.agent(name, *FLAGS, nnodes="2") for name in "ab"]
    workers = world.mailbox.workers(2)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    done = world.run(RALLYPOINT, "journal", "export", f"sqlite:{state}", str(backup))
    assert done.returncode == 0, done.stderr
    workers[1].tell("exit", "3")
    world.mailbox.workers(2, round=2)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 2))
    coordinator.kill()
    lose(state)
    done = world.run(RALLYPOINT, "journal", "import", str(backup), f"sqlite:{state}")
    assert done.returncode == 0, done.stderr
    world.coordinator(port, f"--state=sqlite:{state}")

    again = world.mailbox.workers(2, round=3)
    assert [worker.restart_count for worker in again] == [0, 0]
    for worker in again:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]
