"""Ends the low priority of a standby from outside, while it imports.

The standby lowers it itself: see in_worker/standby/rallypoint_priority.py for what it consists of.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

TRIES = 100
AGAIN_S = 0.1
"""Without CAP_SYS_ADMIN the kernel takes one change of a group in so many seconds, of all users."""
_LINE_BYTES_MAX = 256
"""Of the file of a group: "/autogroup-25 nice 0"."""
_NORMAL = b"0"
"""The nice value of the group that a new session gets."""


async def end_low_priority(pid: int) -> None:
    """Give a process the share of the processors that any other gets, as far as this user may."""
    for _ in range(TRIES):
        if _try_to_end(pid):
            break
        await asyncio.sleep(AGAIN_S)


def _try_to_end(pid: int) -> bool:
    """Return False if the kernel asks to try again."""
    try:
        for task in Path("/proc", str(pid), "task").iterdir():
            if os.sched_getscheduler(int(task.name)) == os.SCHED_IDLE:
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
        group = os.open(f"/proc/{pid}/autogroup", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.read(group, _LINE_BYTES_MAX).split()[2:] != [_NORMAL]:
                os.write(group, _NORMAL)
        finally:
            os.close(group)
    except BlockingIOError:  # EAGAIN
        return False
    except OSError:  # it has ended, or this kernel has no such groups
        pass
    return True
