"""A program that launches functions is killed, or loses its helper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.agent.round.dead_folders import remove_dead_folders
from support.functions.running import METHODS
from support.processes.processes import DEADLINE_S, Lines, Witness

REPOSITORY = Path(__file__).parents[3]
# The launching program prints the pids of the helper and of the tree below each worker.
LAUNCH = """
import os, sys
from rallypoint.elastic import LaunchConfig, elastic_launch
from support.functions.trees import grow

if __name__ == "__main__":
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=1, start_method=sys.argv[1], max_restarts=0
    )
    elastic_launch(config, grow)()
"""
LAUNCHES_TWICE = """
import ctypes
import os
import threading
from rallypoint.elastic import LaunchConfig, elastic_launch

PR_GET_CHILD_SUBREAPER = 37

def is_subreaper():
    flag = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(flag), 0, 0, 0)
    return bool(flag.value)

if __name__ == "__main__":
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1, start_method="spawn")
    seen = [is_subreaper()]
    for _ in range(2):
        elastic_launch(config, os.getpid)()
        seen.append(is_subreaper())
    print(*seen)
"""
every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture
def output() -> Iterator[Lines]:
    lines = Lines()
    yield lines
    lines.close()


def start(folder: Path, program: str, method: str, output: Lines) -> subprocess.Popen[bytes]:
    script = folder / "program.py"
    script.write_text(program)
    return subprocess.Popen(
        [sys.executable, str(script), method],
        stdout=output.write_fd,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tests"), "TMPDIR": str(folder)},
    )


@every_method
def test_killed_interpreter_leaves_nothing(
    method: str, tmp_path: Path, output: Lines, witness: Witness
) -> None:
    """SIGKILL to the launching program ends the helper, the workers and all below them."""
    with start(tmp_path, LAUNCH, method, output) as program:
        pids = output.pids(4)
        witness.watch(*pids.values())
        program.send_signal(signal.SIGKILL)

        assert witness.await_deaths() == []
        assert program.wait(DEADLINE_S) == -signal.SIGKILL
    assert sorted(pids) == ["child", "daemon", "helper", "worker"]


# The launching program has forked a child meanwhile, which holds the socket to the helper.
FORK_BESIDE = """
import os, signal, sys, time
from rallypoint.elastic.functions import FunctionLaunch
from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.round.environ import worker_command
from support.functions.trees import grow

if __name__ == "__main__":
    launch = FunctionLaunch(grow, (), sys.argv[1])
    host = launch.host()
    if (child := os.fork()) == 0:
        signal.pause()
    print("beside", child, flush=True)
    argv = worker_command(launch.launch, python="", round=1, local_rank=0)
    host.spawn(SpawnRequest(
        worker_id=1, argv=argv, env=dict(os.environ), cwd="/", stdout_fd=1, stderr_fd=2,
        is_forked=launch.launch.function.is_forked,
    ))
    signal.pause()
"""


@every_method
def test_fork_beside_the_helper_does_not_keep_it_alive(
    method: str, tmp_path: Path, output: Lines, witness: Witness
) -> None:
    """A child of the killed program that holds its descriptors keeps no worker alive."""
    with start(tmp_path, FORK_BESIDE, method, output) as program:
        pids = output.pids(5)
        witness.watch(*pids.values())
        program.send_signal(signal.SIGKILL)
        beside = pids.pop("beside")

        assert witness.await_deaths(*pids.values()) == []
        assert witness.is_alive(beside)


@every_method
def test_folder_of_a_killed_interpreter_is_removed_by_the_next(
    method: str, tmp_path: Path, output: Lines, witness: Witness
) -> None:
    """The next launch removes the private folder with the call and the return values."""
    with start(
        tmp_path,
        FORK_BESIDE.replace("signal.pause()\n    print", "os._exit(0)\n    print"),
        method,
        output,
    ) as program:
        pids = output.pids(5)
        pids.pop("beside")
        witness.watch(*pids.values())
        (folder,) = tmp_path.glob("rallypoint_*")
        assert remove_dead_folders(tmp_path) == []
        program.send_signal(signal.SIGKILL)
        assert witness.await_deaths() == []

    assert remove_dead_folders(tmp_path) == [str(folder)]


# The function kills the helper in its first round. The caller has text in a buffer.
LOSE_HELPER = """
import os, signal, sys
from rallypoint.elastic import LaunchConfig, elastic_launch

def work(flag):
    if not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    return 5

if __name__ == "__main__":
    print("once", end=" ")
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=1, start_method=sys.argv[1], max_restarts=1
    )
    try:
        print(elastic_launch(config, work)("flag-of-" + sys.argv[1]))
    except Exception as error:
        print(error)
"""


@every_method
def test_lost_helper_is_replaced_unless_it_was_a_fork(
    method: str, tmp_path: Path, output: Lines
) -> None:
    """Another helper runs the next round; after fork, the launch ends with a clear error."""
    with start(tmp_path, LOSE_HELPER, method, output) as program:
        line = output.line()
        assert program.wait(DEADLINE_S) == 0

    if method != "fork":
        assert line == "once {0: 5}"
    else:
        assert line.startswith("once ")
        assert line.endswith("was a fork of this process, and cannot be started again")
    assert output.all() == b""


def test_program_is_no_subreaper_after_a_launch(tmp_path: Path) -> None:
    """What it starts later has init as its last parent: it would not reap such a process itself."""
    script = tmp_path / "program.py"
    script.write_text(LAUNCHES_TWICE)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S * 2,
        check=True,
    )

    assert done.stdout.split() == ["False"] * 3
