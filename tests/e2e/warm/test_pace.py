"""Standbys that are made beside busy workers leave the processors to them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.processes.commands import Command
from support.processes.processes import Witness
from support.processes.world import WORKERS, World
from support.warm.standbys import is_standby

pytestmark = pytest.mark.long
MODULE = """
import time
while time.process_time() < SECONDS:
    pass
"""
FLAGS = ("--max-restarts=50", "--crash-loop=0", "--warm=slow")


def start(world: World, seconds: float) -> Command:
    """Start a node whose workers keep all processors busy, and whose standbys import slowly."""
    Path(world.folder, "slow.py").write_text(MODULE.replace("SECONDS", str(seconds)))
    env = {"PYTHONPATH": str(world.folder)}
    return world.agent("a", *FLAGS, nproc=1, script=(str(WORKERS / "busy.py"),), env=env)


def test_standby_is_made_a_little_at_a_time(world: World) -> None:
    """It takes long, and then it becomes a worker like any other."""
    agent = start(world, 0.35)
    (worker,) = world.mailbox.workers(1, round=1)
    agent.wait_event("standbys_paced")
    agent.wait_event("standbys_ready")
    worker.tell("exit", "1")
    world.mailbox.workers(1, round=2)

    assert agent.wait_event("warm_started")["workers"] == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_standby_that_is_stopped_ends_with_its_agent(world: World, signum: signal.Signals) -> None:
    """It is stopped nearly all the time, and reads nothing then."""
    agent = start(world, 3600.0)
    world.mailbox.workers(1, round=1)
    agent.wait_event("standbys_paced")
    witness = Witness()
    witness.watch(*(pid for pid in world.marked() if is_standby(pid)))
    agent.signal(signum)
    agent.wait()

    assert witness.await_deaths() == []
    assert world.left() == []
    witness.close()
