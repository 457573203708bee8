"""How far this process has come before its first step: the agent of its node learns it at once.

The agent reads what workers write into a FIFO, and reports it for all of them together. So a
milestone costs the worker microseconds and no connection, and loads nothing: loading gRPC takes a
fifth of a second, and a process that is forked meanwhile may hang.

Without such a FIFO, as with an older agent or coordinator, this process reports to the coordinator:
with the first call that uses the network, and the report says how long ago it was.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, get_args

from rallypoint.worker.environment import Environment, read_environment

if TYPE_CHECKING:
    from rallypoint.worker.session import Session

Milestone = Literal["imported", "process_group"]
_noted: dict[tuple[int, str], float] = {}
"""When a milestone was reached, by the id of the process and its name."""
_waiting: set[tuple[int, str]] = set()
"""Those that the agent does not know yet, and of which no report to the coordinator has begun."""


def note(name: Milestone) -> None:
    """Note a milestone; only the first time counts.

    Raises:
        ValueError: when there is no such milestone.
    """
    if name not in get_args(Milestone):
        raise ValueError(f"no milestone {name!r}: use one of {', '.join(get_args(Milestone))}")
    key = (os.getpid(), name)
    if key not in _noted:
        _noted[key] = time.monotonic()
        _waiting.add(key)
    if _needs_coordinator() and "grpc" in sys.modules:
        report()


def is_waiting() -> bool:
    """Return whether this process has milestones to report."""
    return bool(_own())


def hand_over(session: Session) -> None:
    """Begin to report to the coordinator what the agent does not take, without waiting."""
    if not _needs_coordinator():
        return
    keys = _own()
    _waiting.difference_update(keys)
    with suppress(Exception):  # a mark must not disturb the training
        session.milestones.note({name: _noted[pid, name] for pid, name in keys})


def report() -> None:
    """Report what waits, if that is possible."""
    with suppress(Exception):  # the same
        if not _needs_coordinator():
            return
        from rallypoint.worker.session import current

        hand_over(current())


def _own() -> list[tuple[int, str]]:
    pid = os.getpid()
    return [key for key in tuple(_waiting) if key[0] == pid]  # other threads change it


def _needs_coordinator() -> bool:
    """Tell the agent what waits; return whether something does that no agent takes."""
    for key in _own():
        try:
            _tell_agent(read_environment(), key)
        except BlockingIOError:
            return False  # the FIFO is full: the next call tries again
        except Exception:  # noqa: BLE001  # no agent reads: the coordinator learns it from here
            return True
        _waiting.discard(key)
    return False


def _tell_agent(environment: Environment, key: tuple[int, str]) -> None:
    """Write one milestone into the agent's FIFO.

    Raises:
        BlockingIOError: it is full.
        OSError: no agent reads it, or there is none.
    """
    at_ms = int(_noted[key] * 1000)
    # What others may have written without an end of line stays apart.
    line = f"\n{environment.mark_head} {key[1]} {at_ms}\n".encode()
    fd = os.open(environment.mark_pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(fd, line)  # whole or not at all: it is shorter than PIPE_BUF
    finally:
        os.close(fd)
