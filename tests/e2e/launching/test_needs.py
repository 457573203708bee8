"""What an agent needs of the kernel and of the limits around it: one line when it is not there."""

from __future__ import annotations

import errno
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from rallypoint.base import needs
from rallypoint.base.needs import count_startable
from support.processes.commands import SCRIPTS
from support.processes.sandbox import CLONE, CLONE3, KILL, PRCTL, sandbox
from support.processes.world import World

API = """
from rallypoint.elastic import LaunchConfig, RendezvousError, elastic_launch

if __name__ == "__main__":
    try:
        elastic_launch(LaunchConfig(1, 1, 2), print)()
    except RendezvousError as error:
        print(error)
"""
HIDE_PROC = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
READ_ONLY = ("unshare", "--mount", "sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh")
OTHER_PROC = ("unshare", "--pid", "--fork")


def limits(soft: int, hard: int) -> tuple[str, ...]:
    """Return what to put before a command that may open so many files."""
    return ("sh", "-c", f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"', "sh")


def skip_without_rights(prefix: Sequence[str]) -> None:
    """Skip the test if a command cannot be run in this way here."""
    if prefix[0] == "unshare":
        missing = shutil.which("unshare") is None
        if missing or subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
            pytest.skip("needs the right to make namespaces")


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        pytest.param(lambda: sandbox(errno.EPERM, PRCTL), "prctl cannot be used here", id="prctl"),
        pytest.param(lambda: sandbox(errno.ENOSYS, KILL), "signals cannot be used", id="signals"),
        pytest.param(
            lambda: sandbox(errno.EAGAIN, CLONE, CLONE3),
            "only 0 more processes and threads can start here",
            id="processes",
        ),
        pytest.param(
            lambda: sandbox(errno.EPERM, CLONE3),
            "only 0 more processes and threads can start here, and an agent with 1 worker needs "
            "about 15: update the container runtime, or allow clone3",
            id="clone3",
        ),
        pytest.param(lambda: READ_ONLY, "no temporary file can be written: let TMPDIR", id="disk"),
        pytest.param(lambda: HIDE_PROC, "/proc is not mounted here", id="no-proc"),
        pytest.param(lambda: OTHER_PROC, "/proc shows the processes of another", id="other-proc"),
        pytest.param(lambda: limits(20, 20), "a process may open 20 files", id="files"),
    ],
)
def test_what_is_not_there_is_named(
    world: World, prefix: Callable[[], tuple[str, ...]], words: str
) -> None:
    """Exit code 2 and one line, before anything is started."""
    before = prefix()
    skip_without_rights(before)
    done = world.run(*before, *world.standalone("--no-python", script=("echo", "hi")))

    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(f"node-agent: error: {words}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        pytest.param((PRCTL,), "prctl cannot be used here", id="prctl"),
        pytest.param((CLONE, CLONE3), "only 0 more processes and threads", id="processes"),
    ],
)
def test_what_is_not_there_is_an_error_of_a_launch(
    world: World, calls: tuple[int, ...], words: str
) -> None:
    """The same line, before anything is started."""
    script = world.folder / "launch.py"
    script.write_text(API)
    done = world.run(*sandbox(errno.EAGAIN, *calls), sys.executable, str(script))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(words)
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("command", [("coordinator",), ("relay", "--coordinator=localhost:1")])
@pytest.mark.parametrize(
    ("calls", "advice"),
    [
        ((errno.EAGAIN, CLONE, CLONE3), "raise ulimit -u or pids.max"),
        ((errno.EPERM, CLONE3), "update the container runtime, or allow clone3"),
    ],
)
def test_server_without_threads_says_so(
    world: World, command: tuple[str, ...], calls: tuple[int, ...], advice: str
) -> None:
    """Exit code 2 and one line, before it listens."""
    rallypoint = str(SCRIPTS / "rallypoint")
    done = world.run(*sandbox(*calls), rallypoint, *command, "--host=127.0.0.1", "--port=0")

    text = "only 0 more processes and threads can start here, and it needs about 11"
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(f"rallypoint {command[0]}: error: {text}: {advice}")
    assert done.stderr.count("\n") == 1


def test_limit_of_files_is_raised_for_the_agent_alone(world: World) -> None:
    """It has more pipes than the shell lets it open; workers get the limit of the shell."""
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4_096)
    flags = ("--nproc-per-node=24", "--tee=3", f"--log-dir={world.folder}/logs", "--no-python")
    show = ("sh", "-c", "echo $(ulimit -Sn) $(ulimit -Hn)")
    done = world.run(*limits(64, hard), *world.standalone(*flags, script=show))

    assert done.returncode == 0, done.stderr
    assert sorted({line.partition(":")[2] for line in done.stdout.splitlines()}) == [f"64 {hard}"]


@pytest.mark.parametrize(("is_teed", "tasks"), [(False, 29), (True, 37)])
def test_tee_needs_threads(monkeypatch: pytest.MonkeyPatch, is_teed: bool, tasks: int) -> None:
    """One more for each worker: its errors are read apart."""
    monkeypatch.setattr(needs, "count_startable", lambda wanted: wanted - 1)

    found = needs.find_limit(8, is_teed=is_teed, hosts=False)
    assert found.startswith(f"only {tasks - 1} more processes and threads can start here")


def test_trial_of_processes() -> None:
    """It finds as many as can start, and leaves none behind."""
    program = (
        "import os\n"
        "from rallypoint.base.needs import count_startable\n"
        "print(count_startable(200), count_startable(0), len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.split()[:2] == ["200", "0"]
    assert count_startable(1) == 1
