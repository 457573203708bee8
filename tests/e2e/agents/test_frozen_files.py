"""A file system that stands still, with the logs on it, costs no node and keeps no agent alive."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from support.processes.commands import Command
from support.processes.jobs import node
from support.processes.world import World

PLANTED = str(Path(__file__).with_name("planted.py"))
LEASE_S = 1.5
"""Much shorter than the file system stands still."""
END_S = 10
"""How long an agent may take to end: SIGTERM to its workers, and two seconds for each folder."""
GRACE_S = 2
"""Of a worker that ignores SIGTERM."""


class Storage:
    """A folder for logs, on a file system that stands still on request, for one agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir()
        os.mkfifo(folder / "gate")

    def freeze(self) -> None:
        (self.folder / "frozen").touch()

    def thaw(self) -> None:
        (self.folder / "frozen").unlink()
        os.close(os.open(self.folder / "gate", os.O_RDWR))

    def agent(self, world: World, *flags: str, nnodes: str = "1", **env: str) -> Command:
        return world.agent(
            "a",
            *(f"--log-dir={self.logs}", "--heartbeat-interval=0.3", f"--lease={LEASE_S}", *flags),
            nnodes=nnodes,
            env={"E2E_FROZEN": str(self.folder), **env},
            prefix=(sys.executable, PLANTED, "files"),
        )


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    folder = tmp_path / "s"
    folder.mkdir()
    return Storage(folder)


def start_two(world: World, storage: Storage) -> list[Command]:
    """Start a job of two nodes; the logs of the first one freeze before the round begins."""
    first = storage.agent(world, "-r3", nnodes="2")
    first.wait_event("coordinator_reached")
    storage.freeze()
    flags = ("--heartbeat-interval=0.3", f"--lease={LEASE_S}")
    return [first, world.agent("b", *flags, nnodes="2")]


def test_node_is_not_lost_while_a_round_starts(world: World, storage: Storage) -> None:
    """Its heartbeats continue, and it starts its workers when its files can be opened."""
    agents = start_two(world, storage)
    event = agents[0].wait_event("file_system_stalled", limit_s=60)
    job = world.jobs.get(world.job_id)

    assert event["for_s"] > 3 * LEASE_S
    assert (job.round.header.number, node(job, "a").attached) == (1, True)
    storage.thaw()
    for worker in world.mailbox.workers(2):
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]
    assert len(world.mailbox.started()) == 2


def test_sigterm_ends_an_agent_whose_round_cannot_start(world: World, storage: Storage) -> None:
    """It does not wait for the file system, and no worker of the round starts."""
    agent, peer = start_two(world, storage)
    agent.wait_text("blocked in mkdir")
    agent.signal(signal.SIGTERM)

    assert agent.wait(END_S) == 128 + signal.SIGTERM
    assert {worker.node for worker in world.mailbox.started()} <= {"b"}
    peer.signal(signal.SIGTERM)
    assert peer.wait() == 128 + signal.SIGTERM
    assert world.left() == []


@pytest.mark.parametrize("has_temporary_files", [False, pytest.param(True, marks=pytest.mark.long)])
def test_stop_does_not_wait_for_files(
    world: World, storage: Storage, has_temporary_files: bool
) -> None:
    """Workers that write to files get their signal, and the agent ends."""
    env = {"TMPDIR": str(storage.logs)} if has_temporary_files else {}
    agent = storage.agent(world, "-r3", "--shutdown-timeout=60", **env)
    (worker,) = world.mailbox.workers(1)
    worker.tell("TERM", "obey")
    world.mailbox.wait("ready")
    storage.freeze()
    agent.signal(signal.SIGTERM)
    world.mailbox.wait("signalled", limit_s=END_S)

    assert agent.wait(END_S) == 128 + signal.SIGTERM
    assert world.left() == []


@pytest.mark.parametrize("has_temporary_files", [False, True])
def test_kill_does_not_wait_for_files(
    world: World, storage: Storage, has_temporary_files: bool
) -> None:
    """A worker that ignores its signal is killed, and the log says where it stands if it can."""
    env = {"TMPDIR": str(storage.logs)} if has_temporary_files else {}
    agent = storage.agent(world, "--redirects=3", f"--shutdown-timeout={GRACE_S}", **env)
    (worker,) = world.mailbox.workers(1)
    worker.tell("TERM", "ignore")
    world.mailbox.wait("ready")
    storage.freeze()
    agent.signal(signal.SIGTERM)

    assert agent.wait(GRACE_S + END_S) == 128 + signal.SIGTERM
    (line,) = agent.events("worker_survived_stop")
    assert line["pid"] == worker.pid
    if has_temporary_files:
        assert line["why"] == "no stacks: its files do not answer"
    else:
        assert line["at"].startswith("obedient.py:")
    assert world.left() == []


def test_failure_is_reported_without_files(world: World, storage: Storage) -> None:
    """The report of an exit does not wait, and neither does the file for the scheduler."""
    error_file = str(storage.logs / "cause.json")
    agent = storage.agent(world, "-r3", TORCHELASTIC_ERROR_FILE=error_file)
    (worker,) = world.mailbox.workers(1)
    storage.freeze()
    worker.tell("exit", "3")

    assert agent.wait(END_S) == 1
    assert agent.events("worker_files_skipped")
    (unwritten,) = agent.events("error_file_not_written")
    assert unwritten["path"] == error_file
    assert world.left() == []


def test_files_are_read_when_they_can_be(world: World, storage: Storage) -> None:
    """Without a freeze, the same report has the error and the scheduler's file is there."""
    error_file = storage.logs / "cause.json"
    agent = storage.agent(world, "-r3", TORCHELASTIC_ERROR_FILE=str(error_file))
    (worker,) = world.mailbox.workers(1)
    worker.tell("record", "no more widgets")
    worker.tell("exit", "3")

    assert agent.wait() == 1
    assert "no more widgets" in "\n".join(agent.said())
    assert "no more widgets" in error_file.read_text()
