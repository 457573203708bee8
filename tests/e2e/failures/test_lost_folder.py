"""The folder in which an agent was started is removed, or cannot be entered."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.processes.processes import Witness
from support.processes.world import World

ENTER = ("sh", "-c", 'mkdir -p start && cd start && exec "$@"', "sh")
"""Starts a command in a folder that the test can remove."""


@pytest.mark.parametrize("flags", [(), ("--preload=json",), ("--run-path",)])
def test_workers_start_in_a_folder_that_was_removed(world: World, flags: tuple[str, ...]) -> None:
    """As under torchrun, whose workers inherit it."""
    agent = world.agent("a", "--max-restarts=2", *flags, prefix=ENTER)
    for round in (1, 2):
        (worker,) = world.mailbox.workers(1, round=round)
        if round == 1:
            (world.folder / "start").rmdir()
        worker.tell("exit", "9")
    (last,) = world.mailbox.workers(1, round=3)

    assert Path(f"/proc/{last.pid}/cwd").readlink().name == "start (deleted)"
    last.tell("exit", "0")
    assert agent.wait() == 0


def test_helper_that_starts_in_it(world: World) -> None:
    """One that replaces another one has the folder too."""
    agent = world.agent("a", "--max-restarts=1", prefix=ENTER)
    (worker,) = world.mailbox.workers(1)
    witness = Witness()
    witness.watch(worker.pid, worker.parent)
    (world.folder / "start").rmdir()
    os.kill(worker.parent, signal.SIGKILL)
    (again,) = world.mailbox.workers(1, round=2)

    assert witness.await_deaths() == []
    assert Path(f"/proc/{again.pid}/cwd").readlink().name == "start (deleted)"
    again.tell("exit", "0")
    assert agent.wait() == 0
