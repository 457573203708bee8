"""Functions that raise."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from support.elastic.program import api
from support.elastic.program.case import Setup, case
from support.elastic.program.outcome import attempt, clean_deep, launch
from support.elastic.program.values import rank

LONG_S = 120
"""A worker that its launcher has to stop sleeps so long."""


class Mishap(Exception):
    """An error with fields."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"code {code}: {why}")
        self.code = code


class Locked(Exception):
    """An error that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


class Speechless(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises(kind: str) -> None:
    if kind == "plain":
        raise ValueError("the loss is nan", 7)
    if kind == "custom":
        raise Mishap(5, why="the disk is full")
    if kind == "locked":
        raise Locked
    if kind == "speechless":
        raise Speechless
    if kind == "lines":
        raise RuntimeError('first line\nsecond "line" with ünïcödé\n')
    if kind == "group":
        raise ExceptionGroup("two at once", [ValueError("one"), KeyError("two")])
    if kind == "interrupt":
        raise KeyboardInterrupt("by the function")
    if kind == "assertion":
        assert rank() < 0
    raise AssertionError(kind)


def raises_at_rank(failing: int) -> str:
    if rank() == failing:
        raise RuntimeError(f"rank {failing}")
    time.sleep(LONG_S)
    return "not stopped"


def raises_in_order(folder: str) -> None:
    """Rank 1 fails first; rank 0 fails as soon as it sees that, or is stopped."""
    mark = Path(folder) / "failed"
    if rank() == 0:
        while not mark.exists():
            time.sleep(0.01)
        time.sleep(LONG_S)
    mark.touch()
    raise RuntimeError(f"rank {rank()}")


def fails_at_first(folder: str) -> list[str]:
    """Fail in the first attempt, once both have begun it, and return what later ones see."""
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    (Path(folder) / f"attempt-{count}-{rank()}").touch()
    if count == "0" and rank() == 1:
        while not (Path(folder) / "attempt-0-0").exists():
            time.sleep(0.01)
        raise RuntimeError("the first attempt")
    if count == "0":
        time.sleep(LONG_S)
    return [count, os.environ["TORCHELASTIC_MAX_RESTARTS"]]


def fails_always(folder: str) -> None:
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    (Path(folder) / f"attempt-{count}-{rank()}").touch()
    raise RuntimeError(f"attempt {count}")


def handles_by_hand() -> list[Any]:
    handler = api.get_error_handler()
    handler.initialize()
    try:
        raises("plain")
    except ValueError as error:
        handler.record_exception(error)
    path = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
    return [type(handler).__name__, path.name, path.exists()]


@case()
def exception(setup: Setup) -> Any:
    """An error of the standard library with two arguments."""
    return launch(setup, raises, "plain", nproc_per_node=1)


@case()
def exception_that_cannot_be_pickled(setup: Setup) -> Any:
    """It is reported by its text."""
    return launch(setup, raises, "locked", nproc_per_node=1)


@case()
def exception_without_a_text(setup: Setup) -> Any:
    """Its `__str__` raises."""
    return launch(setup, raises, "speechless", nproc_per_node=1)


@case()
def exception_of_one_rank(setup: Setup) -> Any:
    """The other is stopped, and is no failure."""
    return launch(setup, raises_at_rank, 1)


@case()
def first_of_two_exceptions(setup: Setup) -> Any:
    """The rank that failed first is reported first."""
    return launch(setup, raises_in_order, str(setup.folder), nproc_per_node=2)


@case()
def success_at_the_second_attempt(setup: Setup) -> Any:
    """Only the values of the attempt that succeeded are returned."""
    found = launch(setup, fails_at_first, str(setup.folder), max_restarts=2)
    return [found, sorted(path.name for path in setup.folder.glob("attempt-*"))]


@case()
def restarts_used_up(setup: Setup) -> Any:
    """The failure of the last attempt is reported."""
    found = launch(setup, fails_always, str(setup.folder), max_restarts=2, nproc_per_node=1)
    return [found, sorted(path.name for path in setup.folder.glob("attempt-*"))]


@case()
def error_handler(setup: Setup) -> Any:
    """What `get_error_handler` returns writes the error file."""
    return launch(setup, handles_by_hand, nproc_per_node=1)


@case()
def error_file_of_the_launcher(setup: Setup) -> Any:
    """A launcher that is recorded has the first failure in its error file."""
    path = setup.folder / "mine.json"
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(path)
    config = setup.config()

    @api.record  # type: ignore[untyped-decorator]  # of either API
    def main() -> None:
        api.elastic_launch(config, raises_at_rank)(1)

    found = attempt(setup, main)
    return [found, clean_deep(setup, json.loads(path.read_text()))]
