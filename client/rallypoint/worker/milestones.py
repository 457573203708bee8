"""How far this process has come before its first step: the agent of its node learns it at once.

The agent reads what workers write into a FIFO, and reports it for all of them together. So a
milestone costs the worker microseconds and no connection, and loads nothing: loading gRPC takes a
fifth of a second, and a process that is forked meanwhile may hang.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Literal, get_args

from rallypoint.worker.environment import Environment, read_environment

Milestone = Literal["imported", "process_group"]
_noted: set[tuple[int, str]] = set()
"""The milestones that were reached, each as the id of the process and its name."""
_waiting: dict[tuple[int, str], float] = {}
"""Those that the agent does not know yet, and when they were reached."""


def note(name: Milestone) -> None:
    """Note a milestone; only the first time counts.

    Raises:
        ValueError: when there is no such milestone.
    """
    if name not in get_args(Milestone):
        raise ValueError(f"no milestone {name!r}: use one of {', '.join(get_args(Milestone))}")
    key = (os.getpid(), name)
    if key not in _noted:
        _noted.add(key)
        _waiting[key] = time.monotonic()
    tell_agent()


def tell_agent() -> None:
    """Tell the agent what it does not know yet. A mark must not disturb the training."""
    for key, at_s in tuple(_waiting.items()):  # other threads change it
        if key[0] != os.getpid():
            continue  # of the process that this one was forked from
        with suppress(Exception):  # no agent reads it
            try:
                _write(read_environment(), key[1], at_s)
            except BlockingIOError:
                return  # the FIFO is full: the next call tries again
        _waiting.pop(key, None)


def _write(environment: Environment, name: str, at_s: float) -> None:
    """Write one milestone into the agent's FIFO.

    Raises:
        BlockingIOError: it is full.
        OSError: no agent reads it, or there is none.
    """
    # What others may have written without an end of line stays apart.
    line = f"\n{environment.mark_head} {name} {int(at_s * 1000)}\n".encode()
    fd = os.open(environment.mark_pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(fd, line)  # whole or not at all: it is shorter than PIPE_BUF
    finally:
        os.close(fd)
