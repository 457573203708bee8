"""How a coordinator begins: with nothing, or with what its journal remembers."""

from __future__ import annotations

import asyncio
import time

from msgspec import Struct

from rallypoint.base.log import get_logger, new_incident
from rallypoint.server.core.memory.replay import JournalRecord, Memory, replay
from rallypoint.server.core.memory.restore import restore
from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.core.model.events import EVENTS_MAX, EventLog
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.holding import Together
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.interface import Journal, JournalUnreadable, Loaded
from rallypoint.server.shell.clock import JUMP_MS, JournalClock, continue_ms, wall_ms

log = get_logger()


class Begun(Struct):
    """What a coordinator begins with; its journal has the first record of this life."""

    state: State
    clock: JournalClock
    stood_ms: int = 0
    """How long journal time stood since the state was made."""


async def begin(
    journal: Journal,
    timing: Timing,
    *,
    listens: bool,
    shard: int | None = None,
    together: Together | None = None,
) -> Begun:
    """Load the journal, raise the epoch, and continue journal time.

    Args:
        journal: of the coordinator; not loaded yet.
        timing: the coordinator's.
        listens: a coordinator without memory may have been at work before, so a new journal begins
            with a window in which running rounds are adopted.
        shard: number for the log; None: the coordinator has no others.
        together: what the states of the process hold; None: there is no other one.

    Raises:
        JournalFailed: when the journal cannot be read or written.
    """
    began_ns = time.monotonic_ns()
    loaded = await journal.load()
    loaded_ns, unix_ms = time.monotonic_ns(), wall_ms()
    if not loaded.records:
        return await _begin_new(journal, timing, unix_ms, loaded.shards, together, listens=listens)
    now_ms = continue_ms(loaded.now_ms)
    _log_gap(unix_ms - loaded.unix_ms, shard)
    # A journal may take seconds, and other shards need the event loop. A few records may be large,
    # so their number says nothing. Nothing else has the state yet.
    memory = await asyncio.to_thread(_replay, loaded)
    restored = await asyncio.to_thread(
        restore,
        memory,
        coordinator_id=journal.identity,
        epoch=max(memory.epoch + 1, unix_ms),
        durable=journal.is_durable,
        timing=timing,
        now_ms=now_ms,
        explain=_explain,
        away_ms=max(0, unix_ms - loaded.unix_ms),
    )
    restored.records += restored.state.clocks.measure(now_ms, unix_ms)
    await journal.append(restored.records, now_ms)
    sessions, jobs = len(restored.state.nodes), len(restored.state.jobs)
    took_ms = (time.monotonic_ns() - began_ns) // 1_000_000
    facts = {"records": len(loaded.records), "jobs": jobs, "nodes": sessions}
    which = {} if shard is None else {"shard": shard}
    log.info("journal_loaded", **which, **facts, took_ms=took_ms)
    stood_ms = (time.monotonic_ns() - loaded_ns) // 1_000_000
    return _count(restored.state, JournalClock(now_ms), together, stood_ms)


def _log_gap(gap_ms: int, shard: int | None) -> None:
    """Log that the journal was written long before now, or after it, by the wall clock.

    The wall clock cannot tell how long the coordinator was away from how far it was set. Neither
    decides anything, apart from the epoch, and from how old the failures are that it knows.
    """
    if abs(gap_ms) <= JUMP_MS:
        return
    which = {} if shard is None else {"shard": shard}
    if gap_ms < 0:
        why = "the wall clock was set back, or this host's is behind; no wait ends later or earlier"
        log.warning("wall_clock_jumped", **which, by_s=gap_ms // 1000, why=why)
        return
    why = "the coordinator was away, or the wall clock was set; every wait continues where it was"
    log.warning("journal_time_resumed", **which, for_s=gap_ms // 1000, why=why)


def _count(
    state: State, clock: JournalClock, together: Together | None, stood_ms: int = 0
) -> Begun:
    """Count a state, whose first batch is in its journal, with the others of its process."""
    if together is not None:
        together.parts.append(state.holding)
        state.together = together
    return Begun(state, clock, stood_ms)


async def _begin_new(
    journal: Journal,
    timing: Timing,
    unix_ms: int,
    shards: int,
    together: Together | None,
    *,
    listens: bool,
) -> Begun:
    # Higher than the epoch of any earlier coordinator, unless the clock was set back. In that case
    # the first Hello with a higher epoch raises it.
    state = State(
        coordinator_id=journal.identity,
        epoch=unix_ms,
        first_epoch=unix_ms,
        durable=journal.is_durable,
        timing=timing,
        listens_until_ms=0,
        events=EventLog(most=EVENTS_MAX // shards),
    )
    if listens and timing.window_ms > 0:
        state.has_unknown_past = True
        state.window_until_ms = state.listens_until_ms = timing.window_ms
        state.deadlines.set((DeadlineKind.WINDOW, ""), state.window_until_ms)
    records: list[JournalRecord] = [EpochRaised(unix_ms, window_until_ms=state.listens_until_ms)]
    records += state.clocks.measure(0, unix_ms)
    await journal.append(records, 0)
    return _count(state, JournalClock(), together)


def _replay(loaded: Loaded) -> Memory:
    try:
        return replay(loaded.records, events_max=EVENTS_MAX // loaded.shards)
    except Exception as error:
        incident = new_incident()
        log.error("replay_failed", incident=incident, exc_info=error)
        text = f"the journal's records contradict each other (incident {incident} in the log)"
        raise JournalUnreadable(f"{text}; start with another --state, or report this") from error


def _explain(job_id: JobId, error: Exception) -> str:
    """Log why a job could not be restored; return the reason for its verdict."""
    incident = new_incident()
    log.error("restore_failed", incident=incident, job_id=job_id, exc_info=error)
    if isinstance(error, BrokenInvariant):
        return f"the journal of this job is inconsistent: {error.text} (incident {incident})"
    return f"the coordinator's log has the cause (incident {incident})"
