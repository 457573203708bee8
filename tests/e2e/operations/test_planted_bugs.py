"""A bug in the coordinator: who else suffers, and how soon everyone involved knows."""

from __future__ import annotations

import sys

from support.processes.commands import Command
from support.processes.world import World

RUN = "from rallypoint.cli.main import {command}; {command}()"
FULL_DISK = """
from rallypoint.server.core.messages.records import EventsLogged
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.journal.memory import MemoryJournal
append = MemoryJournal.append
async def fail(self, records, now_ms):
    logged = [event for one in records if isinstance(one, EventsLogged) for event in one.events]
    if any(event.reason == "round_stopped" for event in logged):
        raise JournalFailed("no space left on device")
    await append(self, records, now_ms)
MemoryJournal.append = fail
"""
BAD_EXITS = """
from rallypoint.server.core.sessions import reports
register_exits = reports.register_exits
def fail(draft, session, exits):
    assert not draft.require_node(session).job_id.startswith("bad"), "private text"
    register_exits(draft, session, exits)
reports.register_exits = fail
"""


def start(world: World, name: str, bug: str, command: str, *argv: str) -> Command:
    """Start a command with a planted bug."""
    return world.start(name, [sys.executable, "-c", bug + RUN.format(command=command), *argv])


def test_standalone_agent_ends_with_its_coordinator(world: World) -> None:
    """At once, with its workers and a line that says why: no other coordinator will come."""
    argv = world.standalone("--nproc-per-node=2", "--max-restarts=1")[1:]
    agent = start(world, "agent", FULL_DISK, "node_agent", *argv)
    first, _ = world.mailbox.workers(2)
    first.tell("exit", "3")

    assert agent.wait(limit_s=30) == 1
    assert "no space left on device" in agent.wait_event("coordinator_failed")["exception"]
    assert "the built-in coordinator failed" in agent.stderr()
    assert world.left() == []


def test_standalone_job_ends_by_a_bug_in_its_step(world: World) -> None:
    """The agent gets the outcome and prints which incident to look for."""
    argv = world.standalone("--job-id=bad", "--nproc-per-node=2", "--max-restarts=1")[1:]
    agent = start(world, "agent", BAD_EXITS, "node_agent", *argv)
    first, _ = world.mailbox.workers(2)
    first.tell("exit", "3")

    assert agent.wait(limit_s=30) == 1
    incident = agent.wait_event("step_failed")["incident"]
    assert f"incident {incident}" in agent.stderr()
    assert world.left() == []
