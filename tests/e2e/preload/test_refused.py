"""Forkservers that must not be used, or not be made: the round starts as it would without them."""

import shlex
import stat
import sys
from pathlib import Path

import pytest

from support.preload.room import MODULE, Room, is_forked, parent_of
from support.processes.world import World


def begin_cold_round(room: Room, why: str) -> None:
    """Let a round begin whose workers are not forked, for this reason."""
    workers = room.begin_round()
    room.agent.wait_event("worker_not_forked", "forkserver_ended", "preload_given_up", why=why)

    assert [worker.rank for worker in workers] == sorted(worker.rank for worker in workers)
    assert not any(is_forked(worker.pid) for worker in workers)


def test_change_during_a_round_is_seen_at_its_end(world: World) -> None:
    """Another forkserver imports it then. The next workers are forked from that, or start cold."""
    room = Room(world, nproc=1)
    (worker,) = room.begin_forked_round()
    room.module.write_text(f"{MODULE}\nCHANGED = True\n")
    before = len(world.mailbox.started())
    worker.kill()
    (other,) = room.await_workers(before)
    room.agent.wait_event("forkserver_ended", why="noted.py has changed")
    server = room.await_ready(2)
    other.kill()
    (last,) = room.await_workers(before + 2)

    assert is_forked(last.pid)
    assert last.parent == parent_of(server)


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
    """The node gives up, and its workers start cold."""
    room = Room(world, nproc=1, text=text)

    begin_cold_round(room, why)
    assert room.agent.events("preloaded") == []


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
    room.agent.wait_event("preload_given_up", why="PYTHON_EXEC")

    assert world.mailbox.started() == []
    begin_cold_round(room, "PYTHON_EXEC")


def test_user_who_asks_for_no_python_gets_no_forkserver(world: World) -> None:
    """The combination is an error that says what to do."""
    agent = world.agent("a", "--preload=json", "--no-python", script=("sleep", "1"))

    assert agent.wait() == 2
    assert "--preload: only Python imports modules; leave out --no-python" in agent.stderr()


@pytest.mark.parametrize("script", [("../near.py",), ("-m", "json.tool", "--help")])
def test_removed_working_directory(world: World, script: tuple[str, ...]) -> None:
    """Workers start there as they would without a forkserver."""
    (world.folder / "near.py").write_text("")
    ends = []
    for flags in ((), ("--preload=json",)):
        line = shlex.join(world.standalone(*flags, script=script))
        done = world.run("sh", "-c", f"mkdir gone; cd gone; rmdir ../gone; exec {line}")
        ends.append((done.returncode, "agent_failed" in done.stderr))

    assert ends[0] == ends[1]
    assert "preload_given_up" in done.stderr
