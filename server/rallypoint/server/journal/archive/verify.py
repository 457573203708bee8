"""What a coordinator would restore from a journal, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from msgspec import Struct

from rallypoint.server.core.memory.replay import replay
from rallypoint.server.core.memory.restore import restore
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.shards import shard_of
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.codec.batches import FORMAT, Batch, decode_batch
from rallypoint.server.journal.interface import JournalUnreadable


class Summary(Struct, frozen=True, kw_only=True):
    """What a store holds."""

    identity: str
    shards: int
    """0: one journal has all jobs."""
    format: int
    """The highest of its batches."""
    epoch: int
    """The highest of the coordinators that wrote it last."""
    batches: int
    records: int
    size: int
    """Bytes of the batches."""
    jobs: tuple[tuple[str, int], ...]
    """Number of jobs by phase, in the order of the phases."""
    first_ms: int
    """When the oldest batch was written, as Unix time; 0 when there is none."""
    last_ms: int
    """When the latest one was."""


def verify_contents(contents: Contents, name: str) -> Summary:
    """Decode, replay and restore every journal, as a coordinator does when it starts.

    Args:
        contents: the store.
        name: what it is called, for messages.

    Raises:
        JournalUnreadable: when a coordinator could not start from it, or would start with a state
            that no coordinator can have.
    """
    phases: Counter[Phase] = Counter()
    epoch = records = 0
    formats, times = {FORMAT if not contents.batches else 0}, {0}
    for shard, (called, payloads) in enumerate(contents.named(name)):
        batches = [_decode(payload, called, contents) for payload in payloads]
        _check_times(batches, called)
        of_journal, state = _restore(contents.identity, batches, called)
        if contents.is_sharded:
            _check_shard(state, shard, contents.shard_count, called)
        phases.update(job.phase for job in state.jobs.values())
        epoch = max(epoch, of_journal)
        records += sum(len(batch.records) for batch in batches)
        formats |= {batch.format for batch in batches}
        times |= {batch.unix_ms for batch in batches}
    return Summary(
        identity=contents.identity,
        shards=contents.shard_count,
        format=max(formats),
        epoch=epoch,
        batches=contents.batches,
        records=records,
        size=contents.size,
        jobs=tuple((phase.value, phases[phase]) for phase in Phase if phases[phase]),
        first_ms=min(times - {0}, default=0),
        last_ms=max(times),
    )


def _decode(payload: bytes, name: str, contents: Contents) -> Batch:
    try:
        return decode_batch(payload)
    except JournalUnreadable as error:
        if not contents.is_sharded:
            raise
        raise JournalUnreadable(f"{name}: {error}") from None


def _check_shard(state: State, shard: int, count: int, name: str) -> None:
    """Refuse a job whose calls go to another shard."""
    for job_id in state.jobs:
        if (other := shard_of(job_id, count)) != shard:
            text = f"{name}: job {job_id} belongs into shard {other}"
            raise JournalUnreadable(f"{text}; restore the journal from a backup")


def _check_times(batches: Sequence[Batch], name: str) -> None:
    for number, (before, after) in enumerate(pairwise(batches), 2):
        if after.now_ms < before.now_ms:
            text = f"{name}: batch {number} is from before the one before it"
            raise JournalUnreadable(f"{text}; restore the journal from a backup")


def _restore(identity: str, batches: Sequence[Batch], name: str) -> tuple[int, State]:
    """Return the epoch of a journal, and the state that a coordinator begins with."""
    broken: dict[JobId, Exception] = {}

    def explain(job_id: JobId, error: Exception) -> str:
        broken[job_id] = error
        return ""

    try:
        memory = replay(record for batch in batches for record in batch.records)
    except Exception as bug:
        text = f"{name}: its records contradict each other ({type(bug).__name__}: {bug})"
        raise JournalUnreadable(f"{text}; restore the journal from a backup") from bug
    epoch, last_ms = memory.epoch, batches[-1].now_ms if batches else 0
    restored = restore(
        memory,
        coordinator_id=identity,
        durable=True,
        epoch=epoch + 1,
        timing=Timing(),
        now_ms=last_ms + 1,
        explain=explain,
    )
    for job_id, error in broken.items():
        why = f"{type(error).__name__}: {error}"
        text = f"{name}: job {job_id} would end, because its records do not fit ({why})"
        raise JournalUnreadable(f"{text}: please report this bug")
    return epoch, restored.state


def describe(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield what a store holds, for a person: names and texts."""
    phases = ", ".join(f"{count} {phase}" for phase, count in summary.jobs)
    jobs = sum(count for _, count in summary.jobs)
    yield "format", str(summary.format)
    yield "coordinator", summary.identity
    if summary.shards:
        yield "shards", str(summary.shards)
    yield "epoch", str(summary.epoch)
    yield "batches", str(summary.batches)
    yield "records", f"{summary.records}, {summary.size / 1_000:.0f} kB"
    yield "jobs", f"{jobs} ({phases})" if jobs else "0"
    if summary.batches:
        yield "from", _time_of(summary.first_ms)
        yield "to", _time_of(summary.last_ms)


def _time_of(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(" ", "seconds")
