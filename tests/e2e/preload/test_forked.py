"""Workers are forked from one process that has imported, and are like any others."""

import signal
from pathlib import Path

import pytest

from support.preload.room import MODULE, Room, is_forked, parent_of
from support.processes.world import World

WAITING = """
import time
while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
    time.sleep(0.01)
"""


def test_workers_are_forked(world: World) -> None:
    """The first round's, too: only the forkserver has imported, and its helper is their parent."""
    room = Room(world)
    server = room.await_ready()
    workers = room.begin_forked_round()

    assert room.importers() == {server: str(world.folder)}
    assert {worker.parent for worker in workers} == {parent_of(server)}
    for local_rank, worker in enumerate(workers):
        assert worker.env["LOCAL_RANK"] == str(local_rank)
        assert worker.env["PYTHONPATH"] == str(world.folder)
        assert not [name for name in worker.env if name.startswith("RALLYPOINT_PRELOAD")]
    cold = [worker for worker in world.mailbox.started() if worker.node != "a"][-2:]
    assert workers[0].env.keys() == cold[0].env.keys()


def test_round_waits_for_the_import(world: World) -> None:
    """Its other node does not."""
    room = Room(world, text=MODULE + WAITING)
    room.partners.append(room.start("b0"))
    world.mailbox.wait("started", 2)

    assert {worker.node for worker in world.mailbox.started()} == {"b0"}
    Path(world.folder, "go").touch()
    workers = room.await_workers(0)
    assert all(is_forked(worker.pid) for worker in workers)
    assert len(room.importers()) == 1


def test_round_that_ends_meanwhile_starts_no_worker(world: World) -> None:
    """The node is ready for the next one."""
    room = Room(world, text=MODULE + WAITING)
    room.partners.append(room.start("b0"))
    world.mailbox.wait("started", 2)
    room.end_round()
    room.agent.wait_event("round_stopped")
    before = len(world.mailbox.started())
    Path(world.folder, "go").touch()
    room.partners.append(room.start("b1"))
    workers = room.await_workers(before)

    assert [worker.rank % 2 for worker in workers] == [0, 1]
    assert all(is_forked(worker.pid) for worker in workers)


@pytest.mark.parametrize("deed", ["exit", "raise", "record", "kill"])
def test_failure_of_a_forked_worker_is_reported_like_any_other(world: World, deed: str) -> None:
    """Exit code, signal, traceback and error file reach the verdict."""
    room = Room(world, nproc=1, flags=("--tee=3",))
    (worker,) = room.begin_forked_round()
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


def test_next_rounds_are_forked_from_the_same_process(world: World) -> None:
    """A sweep spares it. It makes no difference who has ended the round."""
    room = Room(world)
    server = room.await_ready()
    first = room.begin_forked_round()
    room.end_round()
    room.agent.wait_event("round_stopped")
    second = room.begin_forked_round()
    before = len(world.mailbox.started())
    second[0].kill()
    third = room.await_workers(before)

    assert all(is_forked(worker.pid) for worker in third)
    assert len({worker.pid for worker in (*first, *second, *third)}) == 6
    assert set(room.importers()) == {server}
    assert room.forkservers() == [server]
