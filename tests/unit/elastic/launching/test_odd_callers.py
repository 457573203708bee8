"""Programs that are not in the usual state when they launch. Real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from rallypoint.elastic import LaunchConfig, RendezvousError, elastic_launch

def launch():
    return elastic_launch(LaunchConfig(1, 1, 1), os.getppid)()

if __name__ == "__main__":
    {body}
"""
LIMIT_S = 60


def write(folder: Path, *lines: str) -> list[str]:
    """Return the command of a program with these lines."""
    program = folder / "program.py"
    program.write_text(PROGRAM.replace("{body}", "\n    ".join(lines)))
    return [sys.executable, str(program)]


def test_closed_standard_streams(tmp_path: Path) -> None:
    """No socket or file of the agent gets the number of one."""
    command = write(tmp_path, "values = launch()", "open('done', 'w').write(str(len(values)))")
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    subprocess.run(closed, cwd=tmp_path, check=True, timeout=LIMIT_S)

    assert (tmp_path / "done").read_text() == "1"


def test_launch_in_a_fork_of_a_launcher(tmp_path: Path) -> None:
    """It is refused at once, and the process that was forked can launch again."""
    command = write(
        tmp_path,
        "launch()",
        "if not os.fork():",
        "    try:",
        "        launch()",
        "    except RendezvousError as error:",
        "        print(error, flush=True)",
        "    os._exit(0)",
        "os.wait()",
        "print(len(launch()))",
    )
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=LIMIT_S, cwd=tmp_path
    )

    refusal, count = done.stdout.splitlines()
    assert "a fork of one that has already launched" in refusal and count == "1"


def test_forked_worker_collects_garbage(tmp_path: Path) -> None:
    """Garbage that earlier launches left to the caller is not the worker's to free."""
    command = write(
        tmp_path,
        "import gc",
        "gc.disable()",
        "config = LaunchConfig(1, 1, 1, start_method='fork')",
        "print([elastic_launch(config, gc.collect)()[0] >= 0 for _ in range(2)])",
    )
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=LIMIT_S, cwd=tmp_path
    )

    assert done.stdout == "[True, True]\n"


SLOW_TO_EXIT = """
import atexit, os, threading
from rallypoint.elastic import ChildFailedError, LaunchConfig, elastic_launch

def hang():
    open("raised", "w").close()
    threading.Event().wait()

def work():
    if os.environ["RANK"] == "0":
        atexit.register(hang)
    else:
        open("raised").close()
    raise RuntimeError("the loss is nan")

if __name__ == "__main__":
    os.mkfifo("raised")
    try:
        elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0), work)()
    except ChildFailedError as error:
        failures = {rank: failure.exitcode for rank, failure in error.failures.items()}
        print(error.get_first_failure()[0], failures)
"""


def test_worker_that_is_slow_to_exit_after_its_error(tmp_path: Path) -> None:
    """It is the first failure, with exit code 1 and not with the signal that stopped it."""
    program = tmp_path / "program.py"
    program.write_text(SLOW_TO_EXIT)
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
    )

    assert done.stdout == "0 {0: 1, 1: 1}\n"
