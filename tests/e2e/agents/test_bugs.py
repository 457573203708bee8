"""A bug in the agent, planted in one place after the other, ends the agent in an orderly way."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from support.processes.commands import Command
from support.processes.world import World

PLANTED = str(Path(__file__).with_name("planted.py"))
EXIT_SOFTWARE = 70
LINE = "internal error: RuntimeError: planted"


def start(world: World, place: str, *flags: str) -> Command:
    prefix = (sys.executable, PLANTED, place)
    return world.agent("a", "--shutdown-timeout=2", *flags, nproc=2, prefix=prefix)


def assert_orderly(world: World, agent: Command, *, code: int = EXIT_SOFTWARE) -> None:
    """It exits so; one line says why, and nothing is left, neither process nor file."""
    assert agent.wait() == code
    assert world.left() == []
    failed = agent.events("agent_failed")
    assert [event["error"] for event in failed] == ["RuntimeError: planted"]
    assert "in fail" in failed[0]["exception"]
    assert list(world.folder.glob("rallypoint_*")) == []


@pytest.mark.parametrize(
    "place", ["core", "core for good", "supervisor", "event", "timer", "message", "begin"]
)
def test_bug_that_shows_at_the_start_of_a_round(world: World, place: str) -> None:
    """The agent stops its workers and exits 70, with the exception in one line and the log."""
    agent = start(world, place)
    assert_orderly(world, agent)

    assert agent.said()[-1] == f"node-agent: {LINE}"


def test_workers_get_time_to_end(world: World) -> None:
    """They get SIGTERM first, and then SIGKILL, with everything that they started."""
    agent = start(world, "signal", "--shutdown-timeout=60")
    first, second = world.mailbox.workers(2)
    for worker in (first, second):
        worker.tell("TERM", "obey")
        worker.tell("spawn")
    world.mailbox.wait("ready", 2)
    world.mailbox.wait("grandchild", 2)
    agent.signal(signal.SIGTERM)
    stopped = world.mailbox.wait("signalled", 2)
    assert_orderly(world, agent)

    assert {said.pid for said in stopped} == {first.pid, second.pid}


def test_workers_that_cannot_be_stopped(world: World) -> None:
    """If the stop itself fails, SIGKILL follows it; the agent was ending, and keeps its code."""
    agent = start(world, "supervisor's signal")
    for worker in world.mailbox.workers(2):
        worker.tell("TERM", "ignore")
    world.mailbox.wait("ready", 2)
    agent.signal(signal.SIGTERM)

    assert_orderly(world, agent, code=128 + signal.SIGTERM)


def test_bug_in_a_task(world: World) -> None:
    """The report of an exit fails: the agent leaves, and the coordinator learns why."""
    agent = start(world, "task")
    (first, _) = world.mailbox.workers(2)
    first.tell("exit", "3")
    assert_orderly(world, agent)

    job = world.jobs.get(world.job_id)
    assert LINE in job.verdict.text


def test_bug_in_the_thread_of_an_output(world: World) -> None:
    """The worker could write no more: the agent ends, rather than let it die of a closed pipe."""
    agent = start(world, "output", "--tee=3", f"--log-dir={world.folder}/logs")
    world.mailbox.workers(2)[0].tell("print", "a line")
    assert_orderly(world, agent)

    assert agent.said()[-1] == f"node-agent: {LINE}"


@pytest.mark.parametrize("place", ["closing", "helper's end"])
def test_bug_while_the_agent_closes(world: World, place: str) -> None:
    """Each part closes although another fails or hangs; the outcome stays what it was."""
    agent = start(world, place)
    if place == "helper's end":
        for worker in world.mailbox.workers(2):
            worker.tell("exit", "0")
    assert_orderly(world, agent, code=EXIT_SOFTWARE if place == "closing" else 0)


def test_bug_with_a_built_in_coordinator(world: World) -> None:
    """The loop that both share ends in the same way."""
    argv = world.standalone("--shutdown-timeout=2", "--nproc-per-node=2")
    agent = world.start("agent", [sys.executable, PLANTED, "event", *argv])

    assert_orderly(world, agent)
