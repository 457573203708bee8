"""When a coordinator is not needed any more: for one that was started for a single job.

It may end when nothing is left that any node could ask it: all runs are over, and all their nodes
have left. A run that all nodes have left is abandoned by itself after its join timeout.

A node that is lost when its run ends may only be cut off: it comes back, and asks how the run has
ended. So the coordinator lingers, within a limit, until all of these know.
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
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
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
    untold: tuple[NodeName, ...] = ()
    """Nodes that were lost, and may come back to learn how their run has ended; sorted."""


class UntilIdle(Struct, frozen=True):
    """How a coordinator ends that was started for a single job."""

    unused_ms: int
    """How long it waits for a first node."""
    linger_ms: int
    """How long it waits for lost nodes that do not know how their run has ended."""
    touch: Callable[[], None] = lambda: None
    """Notes that the journal is in use; called now and then, in another thread."""
    discard: Callable[[], None] = lambda: None
    """Removes the journal when it is closed; called once, at the end."""
    lingers: Callable[[bool], None] = lambda _: None
    """Notes that it waits for lost nodes alone, or does so no more; called in another thread."""


Read = Callable[[Callable[[State, int], Use]], Awaitable[Use]]
"""Reads the state when everything that it shows is in the journal."""


def find_use(state: State, now_ms: int) -> Use:
    """Return the use that a state shows."""
    is_needed = bool(state.nodes) or any(
        job.phase is not Phase.CLOSED for job in state.jobs.values()
    )
    untold = {name for job in state.jobs.values() for name in _find_untold(job)}
    return Use(state.revisions.latest, is_needed, tuple(sorted(untold)))


def _find_untold(job: Job) -> list[NodeName]:
    """Return the lost nodes that do not know how the latest run of a job has ended.

    One that has come back to learn it has departed once more. One in whose place another node has
    come, such as the next agent of its host, is not awaited.
    """
    if job.outcome in (None, Outcome.ABANDONED):  # all were lost, for longer than nodes wait
        return []
    latest = {departure.name: departure for departure in job.lost}
    has_room = len(job.slots) < job.spec.max_nodes
    return [
        name
        for name, one in latest.items()
        if one.reason is RoundReason.NODE_LOST and (has_room or name in job.slots)
    ]


async def await_idle(
    read: Read,
    changed: Callable[[], asyncio.Event],
    until: UntilIdle,
    leave: Callable[[], Awaitable[None]] | None = None,
) -> str:
    """Return why the coordinator is not needed any more, one line, when it is not.

    Args:
        read: reads its state.
        changed: returns an event that the next change of its state sets.
        until: how it ends.
        leave: writes what stays of its jobs; called when it begins to linger.
    """
    end_s = time.monotonic() + until.unused_ms / 1000
    first, touch_s, has_served = await read(find_use), 0.0, False
    told_s: float | None = None
    """When it ends although lost nodes do not know; None: it does not linger."""
    while True:
        now_s = time.monotonic()
        if now_s >= touch_s:
            touch_s = now_s + TOUCH_S
            await asyncio.to_thread(until.touch)
        change = changed()  # before the state is read: later changes set it
        use = await read(find_use)
        has_served = has_served or use.revision != first.revision
        lingers = not use.is_needed and has_served and bool(use.untold)
        if lingers != (told_s is not None):
            told_s = now_s + until.linger_ms / 1000 if lingers else None
            if lingers and leave is not None:
                await leave()
            await _note_lingering(until, use.untold, lingers=lingers)
        if not use.is_needed and has_served and (told_s is None or now_s >= told_s):
            return _describe_end(use.untold)
        if not use.is_needed and not has_served and now_s >= end_s:
            return f"no node has come for {until.unused_ms / 1000:g} s"
        wait_s = touch_s if use.is_needed else min(touch_s, end_s if told_s is None else told_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, wait_s - time.monotonic())):
                await change.wait()


async def _note_lingering(until: UntilIdle, untold: tuple[NodeName, ...], *, lingers: bool) -> None:
    if until.linger_ms == 0:
        return
    if lingers:
        log.info(
            "lost_nodes_awaited",
            why="all jobs are over, and these nodes do not know it",
            nodes=",".join(untold),
            within_s=until.linger_ms / 1000,
        )
    await asyncio.to_thread(until.lingers, lingers)


def _describe_end(untold: tuple[NodeName, ...]) -> str:
    if untold:
        return f"all jobs are over; lost nodes that do not know it: {', '.join(untold)}"
    return "all jobs are over, and all nodes have left"


def touch_file(path: Path) -> None:
    """Note that a journal is in use. Its loss is noticed elsewhere."""
    try:
        os.utime(path)
    except OSError as error:
        log.debug("journal_not_touched", path=str(path), why=error.strerror)
