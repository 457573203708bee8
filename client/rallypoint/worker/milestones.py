"""How far this process has come before its first step; noted without waiting, and without failing.

The first call that uses the network loads gRPC, which takes a tenth of a second. So it is loaded
in a thread, which ends once the report is on its way.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Literal, get_args

Milestone = Literal["imported", "process_group"]
_noted: set[tuple[int, str]] = set()
"""What was noted, each with the id of the process."""


def note(name: Milestone) -> None:
    """Note a milestone, and report it; only the first time counts.

    Raises:
        ValueError: when there is no such milestone.
    """
    if name not in get_args(Milestone):
        raise ValueError(f"no milestone {name!r}: use one of {', '.join(get_args(Milestone))}")
    key, at_s = (os.getpid(), name), time.monotonic()
    if key in _noted:
        return
    _noted.add(key)
    if hasattr(sys.modules.get("rallypoint.worker.session"), "current"):
        _report(name, at_s)  # it was loaded, so this takes microseconds
        return
    try:
        threading.Thread(target=_report, args=(name, at_s), name="rallypoint-mark").start()
    except RuntimeError:
        pass  # the process has too many threads, or ends


def _report(name: Milestone, at_s: float) -> None:
    try:
        from rallypoint.worker.session import current

        current().milestones.note(name, at_s)
    except Exception:  # noqa: BLE001, S110  # a mark must not disturb the training, nor its output
        pass
