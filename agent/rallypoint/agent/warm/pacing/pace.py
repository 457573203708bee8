"""Lets a standby import at a pace that its machine can bear.

It runs with the least priority while half of the processors are free. While workers run and fewer
are free, that is not enough to protect them (see usage.py). Then it gets the normal priority, or it
would never run, but only for 2 % of the time: it is stopped, and continued for a moment in each
period. What it can cost the workers is a part of these 2 %.

Beside other programs that use the processors it keeps the least priority for two minutes.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, field

from rallypoint.agent.helper.host import WorkerHostError
from rallypoint.agent.warm.pacing.usage import Usage, leaves_room, read_usage
from rallypoint.agent.warm.priority import end_low_priority
from rallypoint.agent.warm.standby import Standby
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger

log = get_logger()

PERIOD_S = 0.5
BURST_S = 0.01
"""How long a standby runs in a period, while workers use the processors."""
CREDIT_S = 0.25
"""How long it runs before the first look. Small modules are imported then."""
FREE_S = 5.0
"""How long it runs before the next look, while there is room. With normal priority: a period."""
LOW_LIMIT_S = 120.0
"""How long it imports with the least priority. Beside programs that use every processor all the
time it gets about 1 % of one."""


class Pace(Struct):
    """The pace of the standbys of a node; they are made one after another."""

    root: Callable[[], int]
    """Returns the pid of the process below which the workers live; 0: there is none."""
    tasks: asyncio.TaskGroup
    read: Callable[[int], Usage] = read_usage
    _files: FileThread = field(default_factory=lambda: FileThread("processors"))
    _has_logged: bool = False

    def begin(self, standby: Standby, add_stopped_s: Callable[[float], None]) -> asyncio.Task[None]:
        """Keep a standby at its pace until the task is cancelled; it may run afterwards.

        Args:
            standby: it was spawned, and imports.
            add_stopped_s: learns for how many seconds it was stopped just now.
        """
        return self.tasks.create_task(self._keep(standby, add_stopped_s))

    async def _keep(self, standby: Standby, add_stopped_s: Callable[[float], None]) -> None:
        low_until_s = time.monotonic() + LOW_LIMIT_S
        is_low = True
        await asyncio.sleep(CREDIT_S)
        while True:
            _signal(standby, signal.SIGSTOP)
            begun_s = time.monotonic()
            try:
                has_room = await self._look()
                if is_low and (not has_room or time.monotonic() >= low_until_s):
                    is_low = False
                    if has_room:
                        _log_delay(standby)
                if not is_low and standby.exited is None:  # else the pid may be another's
                    await end_low_priority(standby.pid)  # again: it may have lowered it since
            finally:
                _signal(standby, signal.SIGCONT)
            add_stopped_s(time.monotonic() - begun_s)
            free_s = FREE_S if is_low else PERIOD_S
            await asyncio.sleep(free_s if has_room else BURST_S)

    async def _look(self) -> bool:
        """Return whether there is room, after the time that a standby is stopped."""
        before = await self._read()
        await asyncio.sleep(PERIOD_S - BURST_S)
        after = await self._read()
        if before is None or after is None or leaves_room(before, after):
            return True
        if not self._has_logged:
            self._has_logged = True
            then = f"they import {BURST_S / PERIOD_S:.0%} of the time"
            log.info(
                "standbys_paced",
                why="workers run, and less than half of the processors are free",
                then=then,
            )
        return False

    async def _read(self) -> Usage | None:
        root = self.root()
        try:
            return await self._files.run("reading processor times", lambda: self.read(root))
        except (OSError, ValueError):  # a kernel that writes something else
            return None


def _log_delay(standby: Standby) -> None:
    why = f"others have used the processors for {LOW_LIMIT_S:g} s"
    then = "it imports with normal priority"
    log.info("standby_delayed", local_rank=standby.local_rank, why=why, then=then)


def _signal(standby: Standby, signum: signal.Signals) -> None:
    if standby.host is not None:
        with suppress(WorkerHostError):  # the helper has died, and its children with it
            standby.host.signal(signum, (standby.id,))
