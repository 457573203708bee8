"""Standbys that must not be used, or not be made: the round starts as it would without them."""

import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from support.processes.world import World
from support.warm.standbys import MODULE, Room, parent_of

SLOW = "did not answer within"
"""What a busy machine may make of any standby: it has a moment to answer."""


def begin_cold_round(room: Room, why: str) -> None:
    """Let a round begin that uses no standby, for this reason; check that none is left."""
    workers = room.begin_round()
    event = room.agent.wait_event("standby_not_used", "standby_ended")

    assert why in event["why"] or SLOW in event["why"]
    importers = room.importers()
    assert all(worker.pid not in importers for worker in workers)
    assert [worker.rank for worker in workers] == sorted(worker.rank for worker in workers)


def test_changed_module_makes_its_standby_useless(world: World) -> None:
    """A standby never runs with an older version of a file than a fresh interpreter."""
    room = Room(world, nproc=1)
    room.await_ready(1)
    room.module.write_text(f"{MODULE}\nCHANGED = True\n")

    begin_cold_round(room, "noted.py has changed")


DEAF = "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: time.sleep(1e6))\n"


def test_standby_that_hangs_is_not_waited_for(world: World) -> None:
    """It has a moment to answer; then it is killed, and its worker starts cold."""
    room = Room(world, nproc=1, text=MODULE + DEAF)
    (standby,) = room.await_ready(1)
    os.kill(standby, signal.SIGUSR1)  # not SIGSTOP: its agent may be about to continue it

    begin_cold_round(room, SLOW)
    assert standby not in world.marked()


def test_killed_standby_is_made_again(world: World) -> None:
    """A node that still waits makes another one."""
    room = Room(world, nproc=1)
    (standby,) = room.await_ready(1)
    os.kill(standby, signal.SIGKILL)
    room.agent.wait_event("standby_ended", why="it was killed by SIGKILL")
    (fresh,) = room.await_ready(2)

    assert fresh != standby


def test_death_of_their_helper_costs_only_standbys(world: World) -> None:
    """The node makes others below another helper, and the next round uses them."""
    room = Room(world, nproc=2)
    standbys = room.await_ready(1)
    os.kill(parent_of(standbys[0]), signal.SIGKILL)
    room.agent.wait_event("standby_helper_lost")
    room.agent.wait_event("standbys_ready", count=2)
    workers = room.begin_round()

    assert not {worker.pid for worker in workers} & set(standbys)
    assert not set(standbys) & set(world.marked())
    assert not room.agent.events("helper_lost", "agent_failed")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "import threading\nthreading.Event\nimport time\n"
            "threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\n",
            "a thread",
        ),
        ("import socket\nKEPT = socket.socket()\n", "a socket"),
        ("import os\nRANK = int(os.environ.get('RANK', 0))\n", "read RANK"),
        ("import os\nIS_FIRST = os.getenv('MASTER_PORT') is None\n", "read MASTER_PORT"),
    ],
)
def test_import_with_side_effects_is_refused(world: World, text: str, why: str) -> None:
    """After three tries the node gives up; its workers start cold."""
    room = Room(world, nproc=1, text=text)
    room.agent.wait_event("standby_not_made", why=why)
    workers = room.begin_round()

    assert len(workers) == 1
    assert room.agent.events("standbys_ready") == []


def test_module_that_cannot_be_imported_is_left_to_the_worker(world: World) -> None:
    """The log names it once; the standby is used all the same."""
    room = Room(world, nproc=1, warm=("--warm=nowhere.at_all,noted",))
    (worker,) = room.begin_warm_round()

    assert worker.pid in room.importers()
    assert [event["name"] for event in room.agent.events("standby_import_failed")] == [
        "nowhere.at_all"
    ]


def wrapper(world: World, *lines: str) -> str:
    """Return a program for PYTHON_EXEC that consists of these lines."""
    path = Path(world.folder, "wrapped-python")
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_wrapper_that_runs_something_before_starts_every_worker_cold(world: World) -> None:
    """Its first Python must not wait in place of the worker's: the script would run in no round."""
    lines = f"{sys.executable} -c 'import sys' || exit", f'exec {sys.executable} "$@"'
    room = Room(world, nproc=1, env={"PYTHON_EXEC": wrapper(world, *lines)})
    room.agent.wait_event("standby_not_made", why="PYTHON_EXEC")

    assert world.mailbox.started() == []
    assert len(room.begin_round()) == 1
    assert room.agent.events("standbys_ready") == []


def test_interpreter_that_runs_no_hook_starts_every_worker_cold(world: World) -> None:
    """The user's script never runs in a probe: nothing starts before the round."""
    python = wrapper(world, f'exec {sys.executable} -I "$@"')
    room = Room(world, nproc=1, env={"PYTHON_EXEC": python})
    room.agent.wait_event("standbys_disabled", why="does not run sitecustomize")

    assert world.mailbox.started() == []
    assert len(room.begin_round()) == 1
    assert room.agent.events("standbys_ready") == []


def test_memory_limit_ends_the_last_standbys(world: World) -> None:
    """With room for none, none is kept, and the log says so once."""
    room = Room(world, flags=("--warm-memory=64k",))
    room.agent.wait_event("standbys_ended", why="--warm-memory")
    workers = room.begin_round()

    assert len(workers) == 2
    assert len(room.agent.events("standbys_ended")) == 1
    assert room.standbys() == []


def test_user_who_asks_for_no_python_gets_no_standbys(world: World) -> None:
    """The combination is an error that says what to do."""
    agent = world.agent("a", "--warm=json", "--no-python", script=("sleep", "1"))

    assert agent.wait() == 2
    assert "--warm: only Python imports modules; leave out --no-python" in agent.stderr()
