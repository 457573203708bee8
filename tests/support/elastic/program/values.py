"""What workers are given, and what they return."""

from __future__ import annotations

import enum
import functools
import os
import zlib
from dataclasses import dataclass
from typing import Any

from support.elastic.program.case import Setup, case
from support.elastic.program.outcome import launch

NUMBERS = 1_000_000
GIGABYTE = 1_000_000_000


def rank() -> int:
    return int(os.environ["RANK"])


def returns_nothing() -> None:
    """Return None."""


def echoes(*args: Any) -> Any:
    return args


def returns_a_dict() -> dict[Any, Any]:
    keys = {"rank": rank(), 1: (2, [3, {4}]), None: b"\0\xff", "text": "Ünïcödé \n"}
    return {**keys, "range": range(3), "float": 1e-300, "big": 2**100}


def returns_a_gigabyte() -> bytes:
    return bytes([65 + rank()]) * GIGABYTE


class Color(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: int
    color: Color

    def shifted(self, by: int) -> Point:
        return Point(self.x + by, self.color)

    def __call__(self, by: int) -> Point:
        return self.shifted(by)


def returns_an_object() -> list[Any]:
    return [Point(rank(), Color.RED), Point, returns_nothing, ValueError("a value", rank())]


def appends(shared: Any) -> int:
    shared.append(rank())
    return len(shared)


def adds(one: int, two: int) -> int:
    return one + two


def reads_arguments(*args: Any) -> list[Any]:
    return [repr(arg) for arg in args]


class LoadsBadly:
    """A value that can be pickled, but not loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def returns_what_cannot_be_loaded() -> Any:
    return LoadsBadly()


def returns_a_lambda() -> Any:
    return lambda: rank()


@case()
def nothing_is_returned(setup: Setup) -> Any:
    """None for every rank."""
    return launch(setup, returns_nothing)


@case()
def values_of_many_types(setup: Setup) -> Any:
    """A dictionary of what Python has."""
    return launch(setup, returns_a_dict)


@case()
def gigabyte(setup: Setup) -> Any:
    """A value of 1 GB per rank."""
    return launch(setup, returns_a_gigabyte, of=lambda value: [len(value), zlib.crc32(value)])


@case()
def objects(setup: Setup) -> Any:
    """Instances, classes, functions and exceptions."""
    return launch(setup, returns_an_object)


@case()
def arguments_of_all_kinds(setup: Setup) -> Any:
    """They arrive as they were given, but for the macro in texts."""
    args = (1, None, "a b", b"\0", [1, (2,)], {"a": {3}}, Point(1, Color.RED), returns_nothing)
    return launch(setup, reads_arguments, *args, "${local_rank} of $5 ${else}", float("inf"))


@case()
def partial_of_a_function(setup: Setup) -> Any:
    """A partial function has no name."""
    return launch(setup, functools.partial(adds, 2), 3)


@case()
def callable_object(setup: Setup) -> Any:
    """An instance with `__call__` has no name."""
    return launch(setup, Point(2, Color.RED), 3)


@case()
def value_that_cannot_be_pickled(setup: Setup) -> Any:
    """A lambda as the return value."""
    return launch(setup, returns_a_lambda, nproc_per_node=1)


@case()
def value_that_cannot_be_loaded(setup: Setup) -> Any:
    """It breaks in the launcher's process."""
    return launch(setup, returns_what_cannot_be_loaded, nproc_per_node=1)
