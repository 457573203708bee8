"""An agent that can reserve no port for the next round says so, tries again, and can be ended."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from support.processes.commands import Command
from support.processes.world import World

PLANTED = str(Path(__file__).with_name("planted.py"))


def start(world: World, place: str) -> Command:
    """Start an agent whose first round has failed, and that has no port for the next one."""
    prefix = (sys.executable, PLANTED, place)
    agent = world.agent("a", "--max-restarts=1", prefix=prefix)
    (worker,) = world.mailbox.workers(1)
    worker.tell("exit", "3")
    event = agent.wait_event("port_not_reserved")
    assert event["why"] == "Too many open files"
    return agent


def test_next_round_begins_once_there_is_a_port(world: World) -> None:
    """The reason is logged once, and the job continues."""
    agent = start(world, "port for a moment")
    (worker,) = world.mailbox.workers(1, round=2)
    worker.tell("exit", "0")

    assert agent.wait() == 0
    assert len(agent.events("port_not_reserved")) == 1


def test_agent_without_a_port_obeys_sigterm(world: World) -> None:
    """One SIGTERM ends it."""
    agent = start(world, "port for good")
    agent.signal(signal.SIGTERM)

    assert agent.wait() == 128 + signal.SIGTERM
    assert agent.events("agent_failed") == []
    assert world.left() == []
