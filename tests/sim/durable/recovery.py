"""What a process of the coordinator begins with: nothing, or what its journal holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rallypoint.server.core.memory.replay import JournalRecord, Memory, replay
from rallypoint.server.core.memory.restore import restore
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.codec.batches import Batch
from rallypoint.server.shell.clock import continue_ms
from sim.durable.disk import CRASHES, IDENTITY, LOST, Disk
from sim.world.contacts import Contacts

if TYPE_CHECKING:
    from sim.world.server import Server

DURABLE_LIFE = 1
"""The only life of a durable coordinator, however many processes live it."""


@dataclass(frozen=True, slots=True)
class Past:
    """What a process begins with."""

    state: State
    memory: Memory
    life: int
    origin_ms: int = 0
    """Journal time at its start."""
    contacts: Contacts | None = None
    """Whom the process before has heard of, whose life this one continues."""


def begin_without_memory(life: int, epoch: int, timing: Timing) -> Past:
    """Return the beginning of a coordinator that knows nothing."""
    state = _new_state(f"{life:032x}", epoch, timing)
    return Past(state, replay((EpochRaised(epoch),)), life)


def load(disk: Disk, unix_ms: int, timing: Timing, before: Server | None) -> Past | None:
    """Return the beginning of a coordinator that reads its journal, as `beginning.begin` does.

    Its first write may fail too; then it returns None.

    Args:
        disk: holds the journal.
        unix_ms: by the clock of its host.
        timing: the coordinator's own.
        before: the process before it, if there was one that has written anything.
    """
    batches = disk.load()
    is_new = not batches
    memory = replay(record for batch in batches for record in batch.records)
    now_ms = 0
    if batches:
        now_ms = resume_ms(batches[-1], unix_ms)
    epoch = max(memory.epoch + 1, unix_ms)
    if is_new:
        state = _new_state(IDENTITY, epoch, timing)
        state.durable = True
        records: list[JournalRecord] = [EpochRaised(epoch, window_until_ms=state.window_until_ms)]
        state.listens_until_ms = state.window_until_ms
    else:
        restored = restore(
            memory,
            coordinator_id=IDENTITY,
            epoch=epoch,
            durable=True,
            timing=timing,
            now_ms=now_ms,
            explain=_explain,
            away_ms=max(0, unix_ms - batches[-1].unix_ms),
        )
        state, records = restored.state, restored.records
    records += state.clocks.measure(now_ms, unix_ms)
    fault = disk.take() if disk.armed in CRASHES else None
    if fault not in LOST:
        disk.append(records, now_ms, unix_ms)
    contacts = None
    if before is not None and not is_new and fault not in LOST:
        contacts = before.contacts
        contacts.restarted(before.now_ms(), now_ms)
    if fault is not None:
        return None
    memory = replay((*(record for batch in batches for record in batch.records), *records))
    return Past(state, memory, DURABLE_LIFE, now_ms, contacts)


def resume_ms(last: Batch, unix_ms: int) -> int:
    """Return when journal time continues; the wall clock has no part in it."""
    return continue_ms(last.now_ms)


def _new_state(coordinator_id: str, epoch: int, timing: Timing) -> State:
    state = State(coordinator_id=coordinator_id, epoch=epoch, first_epoch=epoch, timing=timing)
    state.has_unknown_past = True
    state.window_until_ms = timing.window_ms
    state.deadlines.set((DeadlineKind.WINDOW, ""), timing.window_ms)
    return state


def _explain(job_id: JobId, error: Exception) -> str:
    """Let a job that cannot be restored fail the seed."""
    raise AssertionError(f"{job_id} cannot be restored: {error!r}") from error
