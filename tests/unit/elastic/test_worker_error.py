"""The error of a failed launch: what it says, and what it carries."""

from __future__ import annotations

import linecache
import pickle

import pytest

from rallypoint.elastic import ChildFailedError, ProcessFailure, WorkerError
from rallypoint.elastic.notebook import find_summary

STACK = """Traceback (most recent call last):
  File "cell.py", line 2, in train
  File "model.py", line 9, in step
    raise ValueError("bad")
ValueError: bad
"""


def failure(message: str | dict[str, object], exitcode: int = 1, at: int = 5) -> ProcessFailure:
    failed = ProcessFailure(0, 7, exitcode, "")
    failed.message, failed.timestamp = message, at
    return failed


def test_first_failure_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its traceback, and the lines of code that only the launching program has."""
    cell = ["def train():\n", "    model.step()\n"]
    monkeypatch.setitem(linecache.cache, "cell.py", (1, None, cell, "cell.py"))
    first = failure({"message": "ValueError: bad", "extraInfo": {"py_callstack": STACK}})
    error = WorkerError("train", {2: failure("late", at=6), 1: first, 0: failure("late", at=6)})

    assert str(error) == (
        "rank 1 of train failed: ValueError: bad (exit code 1)\n\n"
        "traceback of rank 1:\n\n"
        "Traceback (most recent call last):\n"
        '  File "cell.py", line 2, in train\n'
        "    model.step()\n"
        '  File "model.py", line 9, in step\n'
        '    raise ValueError("bad")\n'
        "ValueError: bad\n\n"
        "other ranks that failed: 0, 2"
    )
    assert (error.rank, error.failure) == (1, first)
    assert isinstance(error, ChildFailedError)


@pytest.mark.parametrize(
    ("message", "exitcode", "summary"),
    [
        ({"message": "ValueError: bad\nmore"}, 1, "ValueError: bad (exit code 1)"),
        ("Signal 9 (SIGKILL) received by PID 7", -9, "Signal 9 (SIGKILL) received by PID 7"),
        ({"message": "", "extraInfo": "no dict"}, 3, "no error was recorded (exit code 3)"),
    ],
)
def test_failure_in_one_line(message: str | dict[str, object], exitcode: int, summary: str) -> None:
    """An exit code is added to the first line, a signal is the line."""
    failed = failure(message, exitcode)

    assert find_summary(failed) == summary
    assert str(WorkerError("train", {0: failed})) == f"rank 0 of train failed: {summary}"


def test_error_can_be_pickled() -> None:
    """As a pool of processes passes it on."""
    error = pickle.loads(pickle.dumps(WorkerError("train", {1: failure("why")})))

    assert (type(error), error.rank, error.failure.message) == (WorkerError, 1, "why")
