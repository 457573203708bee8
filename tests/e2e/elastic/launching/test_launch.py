"""A launch from Python on one node: what it returns, and how it fails."""

from __future__ import annotations

import signal
import sys

import pytest

from support.elastic.nodes import launch, result
from support.processes.world import World


def test_program_runs_as_all_workers(world: World) -> None:
    """A program has no return value: None for each global rank."""
    node = launch(world, "sh", "-c", "test $WORLD_SIZE = 2", nproc=2, is_alone=True)

    assert {"values": {"0": None, "1": None}} == result(node)


def test_program_that_does_not_exist(world: World) -> None:
    """The error of the system is the message of each failure."""
    found = result(launch(world, "/does/not/exist", nproc=2, is_alone=True))

    assert {"0", "1"} == set(found["failures"])
    assert found["failures"]["0"][1] == 127
    assert "No such file" in found["failures"]["0"][2]


def test_signal_while_the_node_waits_for_others(world: World) -> None:
    """Before the first round, too, a signal ends the launch at once."""
    node = launch(world, nodes=(2, 2))
    node.wait_text("coordinator_reached")
    node.signal(signal.SIGTERM)

    assert result(node)["raised"] == "SignalException"
    assert world.left() == []


@pytest.mark.parametrize("entry", [sys.executable, "obey"])
def test_nothing_outlives_the_interpreter(world: World, entry: str) -> None:
    """Workers, and what they have started, die with a program that is killed."""
    node = launch(world, entry, nproc=2, is_alone=True)
    workers = world.mailbox.workers(2)
    workers[0].tell("spawn")
    world.mailbox.wait("grandchild")
    node.kill()

    assert world.left() == []


def test_second_signal_kills_stubborn_workers(world: World) -> None:
    """A worker that ignores the first signal does not delay the second."""
    node = launch(world, is_alone=True)
    (worker,) = world.mailbox.workers(1)
    worker.tell("TERM", "ignore")
    world.mailbox.wait("ready")
    node.signal(signal.SIGTERM)
    world.mailbox.wait("signalled")
    node.signal(signal.SIGTERM)

    assert result(node)["raised"] == "SignalException"
    assert world.left() == []
