"""How far this process has come before its first step; noted at once, and reported later.

Loading gRPC takes a fifth of a second, and a process that is forked meanwhile may hang. So a
milestone loads nothing: it waits for the first call that uses the network, and its report says how
long ago it was.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from rallypoint.worker.session import Session

Milestone = Literal["imported", "process_group"]
_noted: dict[tuple[int, str], float] = {}
"""When a milestone was reached, by the id of the process and its name."""
_waiting: set[tuple[int, str]] = set()
"""Those of which no report has begun."""


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
    if "grpc" in sys.modules:
        report()


def is_waiting() -> bool:
    """Return whether this process has milestones to report."""
    return bool(_waiting) and any(pid == os.getpid() for pid, _ in _waiting)


def hand_over(session: Session) -> None:
    """Begin to report what waits, without waiting for the answers."""
    keys = [key for key in _waiting if key[0] == os.getpid()]
    _waiting.difference_update(keys)
    with suppress(Exception):  # a mark must not disturb the training
        session.milestones.note({name: _noted[pid, name] for pid, name in keys})


def report() -> None:
    """Report what waits, if that is possible."""
    with suppress(Exception):  # the same
        from rallypoint.worker.session import current

        hand_over(current())
