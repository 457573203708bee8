"""When a coordinator is not needed any more: for one that was started for a single job.

It may end when nothing is left that any node could ask it: all runs are over, and all their nodes
have left or are lost. A run that all nodes have left is abandoned by itself after its join timeout.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from rallypoint.base.log import get_logger
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.state import State

log = get_logger()

TOUCH_S = 5.0
"""How often the journal is touched, so that an agent knows that it is not of the past."""


class Use(Struct, frozen=True):
    """What a state shows of its use."""

    revision: int
    """The latest one of any job: it grows when a node joins."""
    is_needed: bool
    """A run is open, or a node has not left."""


class UntilIdle(Struct, frozen=True):
    """How a coordinator ends that was started for a single job."""

    unused_ms: int
    """How long it waits for a first node."""
    touch: Callable[[], None]
    """Notes that the journal is in use; called now and then, in another thread."""
    discard: Callable[[], None]
    """Removes the journal when it is closed; called once, at the end."""


Read = Callable[[Callable[[State, int], Use]], Awaitable[Use]]
"""Reads the state when everything that it shows is in the journal."""


def find_use(state: State, now_ms: int) -> Use:
    """Return the use that a state shows."""
    is_needed = bool(state.nodes) or any(
        job.phase is not Phase.CLOSED for job in state.jobs.values()
    )
    return Use(state.revisions.latest, is_needed)


async def await_idle(read: Read, changed: Callable[[], asyncio.Event], until: UntilIdle) -> str:
    """Return why the coordinator is not needed any more, one line, when it is not.

    Args:
        read: reads its state.
        changed: returns an event that the next change of its state sets.
        until: how it ends.
    """
    end_s = time.monotonic() + until.unused_ms / 1000
    first, touch_s, has_served = await read(find_use), 0.0, False
    while True:
        now_s = time.monotonic()
        if now_s >= touch_s:
            touch_s = now_s + TOUCH_S
            await asyncio.to_thread(until.touch)
        change = changed()  # before the state is read: later changes set it
        use = await read(find_use)
        has_served = has_served or use.revision != first.revision
        if not use.is_needed and has_served:
            return "all jobs are over, and all nodes have left"
        if not use.is_needed and now_s >= end_s:
            return f"no node has come for {until.unused_ms / 1000:g} s"
        wait_s = touch_s if use.is_needed else min(touch_s, end_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, wait_s - time.monotonic())):
                await change.wait()


def touch_file(path: Path) -> None:
    """Note that a journal is in use. Its loss is noticed elsewhere."""
    try:
        os.utime(path)
    except OSError as error:
        log.debug("journal_not_touched", path=str(path), why=error.strerror)
