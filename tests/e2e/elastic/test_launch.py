"""`launch` from a program: values, lines of the workers, failures, restarts, and an interrupt."""

from __future__ import annotations

import os
import select
import signal
import sys

import pytest

from support.processes.feed import LIMIT_S
from support.processes.world import World

PROGRAM = """
import os, signal, sys, threading
from rallypoint.elastic import launch
from rallypoint.elastic import notebook

def square(offset):
    rank = int(os.environ["RANK"])
    print(f"äöü of {rank}")
    print(f"error of {rank}", file=sys.stderr)
    return rank ** 2 + offset

def fail():
    if os.environ["RANK"] == "1":
        raise ValueError("out of apples")
    threading.Event().wait()

def fail_once():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(3)
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def wait():
    print("pid", os.getpid(), flush=True)
    threading.Event().wait()

def refuse():
    signal.signal(signal.SIGTERM, lambda *_: print("refused", flush=True))
    wait()

if __name__ == "__main__":
    {call}
"""


def write(world: World, call: str) -> list[str]:
    """Return the command of a program that makes this call."""
    program = world.folder / "program.py"
    program.write_text(PROGRAM.replace("{call}", call))
    return [sys.executable, str(program)]


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_values_and_lines(world: World, start_method: str) -> None:
    """Values by rank, each line with its rank and on its stream, and two lines of progress."""
    call = f"print(launch(square, 5, nproc=3, start_method={start_method!r}))"
    done = world.run(*write(world, call))

    out = done.stdout.splitlines()
    # Agents end what killed agents of other tests have left.
    err = [line for line in done.stderr.splitlines() if "their agent is dead" not in line]
    assert (out[0], out[-1]) == ("round 1: 3 workers start", "[5, 6, 9]")
    assert out[-2].startswith("done after ")
    assert sorted(out[1:-2]) == [f"[rank {rank}] äöü of {rank}" for rank in range(3)]
    assert sorted(err) == [f"[rank {rank}] error of {rank}" for rank in range(3)]


def test_second_launch_of_a_program(world: World) -> None:
    """A launch leaves nothing that the next one minds."""
    done = world.run(*write(world, "[launch(square, 0, nproc=2) for _ in range(2)]"))

    assert done.returncode == 0
    for rank in (0, 1):
        assert done.stdout.count(f"[rank {rank}] äöü of {rank}\n") == 2
        assert done.stderr.count(f"[rank {rank}] error of {rank}\n") == 2


def test_failure_is_raised(world: World) -> None:
    """The program ends with the worker's error and traceback; the other worker is stopped."""
    done = world.run(*write(world, "launch(fail, nproc=2)"))

    assert done.returncode == 1
    assert "round 1: rank 1 failed: ValueError: out of apples (exit code 1)\n" in done.stdout
    *_, raised = done.stderr.split("\nrallypoint.elastic.notebook.WorkerError: ")
    assert raised.startswith("rank 1 of fail failed: ValueError: out of apples (exit code 1)\n")
    assert raised.endswith('    raise ValueError("out of apples")\nValueError: out of apples\n')


def test_restart(world: World) -> None:
    """All workers start again while restarts are left; each round and failure has its line."""
    done = world.run(*write(world, "print(launch(fail_once, nproc=2, max_restarts=2))"))

    lines = done.stdout.splitlines()
    assert lines[0] == "round 1: 2 workers start, restart 0 of 2"
    assert any("failed" in line and line.endswith("(exit code 3)") for line in lines)
    assert lines[-3] == "round 2: 2 workers start, restart 1 of 2"
    assert lines[-1] == "[1, 1]"


def test_interrupt(world: World) -> None:
    """Ctrl-C raises KeyboardInterrupt once all workers are gone."""
    call = "launch(wait, nproc=2)"
    program = world.start("program", write(world, call))
    program.wait_stdout_text("pid", 2)
    program.signal(signal.SIGINT)

    assert program.wait() == -signal.SIGINT
    pids = [line.split()[-1] for line in program.stdout().splitlines() if "pid" in line]
    assert [os.path.exists(f"/proc/{pid}") for pid in pids] == [False, False]
    assert program.stdout().endswith("\ninterrupted: all workers have been stopped")


def test_second_interrupt_kills(world: World) -> None:
    """Workers that do not end after the first one get SIGKILL before their time is over."""
    call = "notebook.SHUTDOWN_TIMEOUT_S = 3_600; launch(refuse, nproc=2)"
    program = world.start("program", write(world, call))
    program.wait_stdout_text("pid", 2)
    program.signal(signal.SIGINT)
    program.wait_stdout_text("refused", 2)
    program.signal(signal.SIGINT)

    assert program.wait() == -signal.SIGINT
    assert program.stdout().endswith("\ninterrupted: all workers have been stopped")


def test_nothing_outlives_a_killed_program(world: World) -> None:
    """The workers end with the program that has launched them."""
    program = world.start("program", write(world, "launch(wait, nproc=2)"))
    program.wait_stdout_text("pid", 2)
    pids = [int(line.split()[-1]) for line in program.stdout().splitlines() if "pid" in line]
    handles = [os.pidfd_open(pid) for pid in pids]
    program.kill()
    ended = [bool(select.select([handle], [], [], LIMIT_S)[0]) for handle in handles]
    for handle in handles:
        os.close(handle)

    assert ended == [True, True]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("launch(square, nproc=0)", "ValueError: nproc must be at least 1, not 0"),
        ("launch(wait, max_restarts=-1)", "ValueError: max_restarts must not be negative: -1"),
        ("launch('train.py')", "TypeError: launch needs a function, not 'train.py'"),
        ("launch(wait, start_method='clone')", "ValueError: start_method 'clone' is unknown"),
    ],
)
def test_wrong_arguments(world: World, call: str, error: str) -> None:
    """They are refused before anything starts."""
    done = world.run(*write(world, call))

    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.splitlines()[-1].startswith(error)
