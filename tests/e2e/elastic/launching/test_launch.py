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


def test_function_returns_its_values_by_global_rank(world: World) -> None:
    """A function gets its arguments, and its values come back."""
    node = launch(world, "describe", 5, "x", nproc=2, role="trainer", is_alone=True)

    place = {"WORLD_SIZE": 2, "ROLE_WORLD_SIZE": 2, "GROUP_RANK": 0}
    assert result(node) == {
        "values": {
            str(rank): {"args": [5, "x"], "RANK": rank, "ROLE_RANK": rank, **place}
            for rank in range(2)
        }
    }


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_failure_is_restarted(world: World, method: str) -> None:
    """The next attempt runs after a failure, while restarts are left."""
    node = launch(
        world, "fail_first", 3, nproc=2, max_restarts=2, start_method=method, is_alone=True
    )

    assert {"values": {"0": 1, "1": 1}} == result(node)


def test_failure_for_good_names_the_worker(world: World) -> None:
    """Only workers that failed by themselves are failures, by global rank."""
    node = launch(world, "refuse", "no data", nproc=3, is_alone=True)

    found = result(node)
    assert (found["first"], list(found["failures"])) == (1, ["1"])
    local_rank, exit_code, message = found["failures"]["1"]
    assert (local_rank, exit_code) == (1, 1)
    assert "ValueError: no data" in message["message"]
    assert "Traceback" in message["extraInfo"]["py_callstack"]


def test_program_that_does_not_exist(world: World) -> None:
    """The error of the system is the message of each failure."""
    found = result(launch(world, "/does/not/exist", nproc=2, is_alone=True))

    assert {"0", "1"} == set(found["failures"])
    assert found["failures"]["0"][1] == 127
    assert "No such file" in found["failures"]["0"][2]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_workers_first(world: World, signum: signal.Signals) -> None:
    """A signal reaches the workers, and ends the launch with SignalException."""
    node = launch(world, nproc=2, is_alone=True)
    workers = world.mailbox.workers(2)
    name = signum.name.removeprefix("SIG")
    for worker in workers:
        worker.tell(name, "obey")
    world.mailbox.wait("ready", 2)
    node.signal(signum)

    found = result(node)
    assert found["raised"] == "SignalException"
    assert [signum] * 2 == [said.fields["signum"] for said in world.mailbox.wait("signalled", 2)]
    assert world.left() == []


def test_interrupt_stops_everything(world: World) -> None:
    """Where SIGINT is not handled, KeyboardInterrupt leaves nothing behind."""
    node = launch(world, nproc=2, is_alone=True, signals_to_handle="SIGTERM")
    world.mailbox.workers(2)
    node.signal(signal.SIGINT)

    assert result(node)["raised"] == "KeyboardInterrupt"
    assert world.left() == []


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
