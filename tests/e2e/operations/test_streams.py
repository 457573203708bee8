"""Standard streams that are closed, full or without a reader: the job continues."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.commands import COORDINATOR, Command
from support.processes.world import NEW, World

BROKEN = {
    "closed": "<&- >&- 2>&-",
    "full": ">/dev/full 2>/dev/full",
    "unread": "> >(true) 2>&1",
}


def start(world: World, name: str, kind: str, argv: list[str]) -> Command:
    return world.start(name, ["bash", "-c", f'exec "$0" "$@" {BROKEN[kind]}', *argv])


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("code", [0, 1])
def test_agent_that_nobody_hears_runs_its_job(world: World, kind: str, code: int) -> None:
    """The exit code is the job's, even if log and report cannot be written."""
    agent = start(world, "agent", kind, world.standalone("--max-restarts=1"))
    (first,) = world.mailbox.workers(1)
    first.tell("say", "unheard")
    first.tell("exit", "5")
    (second,) = world.mailbox.workers(1, round=2)
    second.tell("exit", str(code))

    assert agent.wait() == code
    assert world.left() == []


def test_coordinator_whose_log_is_full_serves(world: World) -> None:
    """A full disk under the log ends no job."""
    port = world.ports.reserve()
    start(world, "coordinator", "full", [COORDINATOR, "--host=127.0.0.1", f"--port={port}", *NEW])
    world.target = f"127.0.0.1:{port}"
    agent = world.agent("a")
    for worker in world.mailbox.workers(1):
        worker.tell("exit", "0")

    assert agent.wait() == 0


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Path]:
    """A full pipe without a reader."""
    path = tmp_path / "stuck"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        while True:
            os.write(fd, b"x")
    except BlockingIOError:
        pass
    yield path
    os.close(fd)


def test_log_that_nobody_takes_holds_up_no_job(world: World, stuck: Path) -> None:
    """Coordinator and agent do not wait for a reader of their logs."""
    port = world.ports.reserve()
    redirect = f'exec "$0" "$@" 2> {stuck}'
    argv = [COORDINATOR, "--host=127.0.0.1", f"--port={port}", *NEW]
    coordinator = world.start("coordinator", ["bash", "-c", redirect, *argv])
    world.target = f"127.0.0.1:{port}"
    agent = world.start("agent", ["bash", "-c", redirect, *world.argv("a")])
    for worker in world.mailbox.workers(1):
        worker.tell("exit", "0")

    assert agent.wait() == 0
    coordinator.signal(signal.SIGTERM)
    assert coordinator.wait() == 0
