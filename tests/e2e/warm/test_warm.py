"""Standbys become workers, and such workers are like any others."""

import signal

import pytest

from support.processes.world import OBEDIENT, World
from support.warm.standbys import Room


def test_waiting_interpreters_become_workers(world: World) -> None:
    """The workers are the processes that have imported the module before the round."""
    room = Room(world)
    workers = room.begin_warm_round()

    importers = room.importers()
    assert all(worker.pid in importers for worker in workers)
    assert all(importers[worker.pid] == str(world.folder) for worker in workers)
    for local_rank, worker in enumerate(workers):
        assert worker.env["LOCAL_RANK"] == str(local_rank)
        assert worker.env["PYTHONPATH"] == str(world.folder)
        assert not [name for name in worker.env if name.startswith("RALLYPOINT_STANDBY")]
    cold = [worker for worker in world.mailbox.started() if worker.node != "a"][-2:]
    assert workers[0].env.keys() == cold[0].env.keys()


def test_arguments_and_environment_are_those_of_a_cold_worker(world: World) -> None:
    """Arguments follow the script, with the local rank in place."""
    script = (OBEDIENT, "--rank=${local_rank}", "x y")
    room = Room(world, script=script)
    workers = room.begin_warm_round()

    assert [worker.argv for worker in workers] == [("--rank=0", "x y"), ("--rank=1", "x y")]


@pytest.mark.parametrize("deed", ["exit", "raise", "record", "kill"])
def test_failure_of_a_warm_worker_is_reported_like_any_other(world: World, deed: str) -> None:
    """Exit code, signal, traceback and error file reach the verdict."""
    room = Room(world, nproc=1, flags=("--tee=3",))
    (worker,) = room.begin_warm_round()
    match deed:
        case "exit":
            worker.tell("exit", "7")
            expected = "exit code 7"
        case "raise":
            worker.tell("raise", "no such luck")
            expected = "no such luck"
        case "record":
            worker.tell("record", "recorded by hand")
            worker.tell("exit", "1")
            expected = "recorded by hand"
        case _:
            worker.kill()
            expected = signal.SIGKILL.name

    room.agent.wait_event("round_stopped", why=expected)


def test_output_of_a_warm_worker_goes_where_it_should(world: World) -> None:
    """What the imports have printed comes first, then what the worker prints."""
    room = Room(world, nproc=1, text="print('imported once')\n")
    (worker,) = room.begin_warm_round()
    worker.tell("print", "printed by the worker")
    room.agent.wait_stdout("printed by the worker")

    lines = room.agent.stdout().splitlines()
    at = lines.index("printed by the worker")
    assert lines[at - 1] == "imported once"


def test_next_round_is_warm_again(world: World) -> None:
    """Once the workers are dead, other interpreters are made and used in turn."""
    room = Room(world)
    first = room.begin_warm_round()
    began = len(room.agent.events("warm_started"))
    room.end_round()
    second: list[int] = []
    for count in range(began + 1, began + 10):
        standbys = room.await_ready(count)
        workers = room.begin_round()
        second = [worker.pid for worker in workers]
        if room.agent.wait_event("warm_started", count=count)["workers"] == 2:
            assert second == standbys
            break
        room.end_round()
    else:
        raise AssertionError(room.agent.stderr())

    assert set(second).isdisjoint(worker.pid for worker in first)


def test_worker_that_is_killed_comes_back_warm(world: World) -> None:
    """In a calm round, standbys are made beside the workers, and the next round uses them."""
    room = Room(world)
    room.begin_round()
    ready = len(room.agent.events("standbys_ready"))
    for count in range(ready + 1, ready + 5):
        standbys = set(room.await_ready(count)) - {one.pid for one in world.mailbox.started()}
        before = world.mailbox.started()
        next(one for one in reversed(before) if one.node == "a").kill()
        workers = room.await_workers(len(before))
        if {worker.pid for worker in workers} == standbys:
            return
    raise AssertionError(room.agent.stderr())


def test_withdrawn_notice_lets_standbys_be_made(world: World) -> None:
    """A node that would let the round grow disappears; the round runs on, and is calm again."""
    flags = ("--settle-time=100", "--max-restarts=50")
    agent = world.agent("a", "--warm=json", *flags, nnodes="1:2", nproc=1)
    world.mailbox.workers(1, round=1)
    other = world.agent("b", *flags, nnodes="1:2", nproc=1)
    agent.wait_event("notice_received")

    assert agent.events("standbys_ready") == []
    other.kill()
    agent.wait_event("standbys_ready")
    assert agent.events("round_stopped") == []
