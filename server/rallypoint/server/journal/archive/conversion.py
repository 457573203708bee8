"""Divides the journal of all jobs among shards.

A job takes everything along: its nodes, rounds, keys, revisions, barriers, and what is known of it
after it was forgotten. Sessions and tokens stay valid, because identity and secret stay.

Events keep their numbers. There is no way back: shards number their events and count their time
independently, so their journals cannot become one, or those of another number of shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from rallypoint.server.core.memory.replay import Memory, replay, snapshot
from rallypoint.server.core.model.barrier import BarrierKey
from rallypoint.server.core.model.events import Event, EventLog, JobEvents
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.shards import shard_of
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.codec.batches import decode_batch, encode_batches
from rallypoint.server.journal.interface import JournalUnreadable

_Value = TypeVar("_Value")


def with_shards(contents: Contents, count: int) -> Contents:
    """Return a store without shards divided into so many.

    Raises:
        JournalUnreadable: when its journal cannot be read.
    """
    (payloads,) = contents.journals
    journals: tuple[tuple[bytes, ...], ...]
    if count == 1 or not payloads:
        journals = (payloads, *((),) * (count - 1))
    else:
        journals = _divide(payloads, count)
    return replace(contents, journals=journals, is_sharded=True)


def _divide(payloads: Sequence[bytes], count: int) -> tuple[tuple[bytes, ...], ...]:
    """Return the batches of each shard, as of the same time as the latest of the journal."""
    batches = [decode_batch(payload) for payload in payloads]
    memory = replay(record for batch in batches for record in batch.records)
    for job_id, error in memory.broken.items():
        text = f"the records of job {job_id} do not fit ({type(error).__name__}: {error})"
        raise JournalUnreadable(f"{text}: please report this bug")
    now_ms, unix_ms = batches[-1].now_ms, batches[-1].unix_ms
    return tuple(
        tuple(encode_batches(snapshot(part), now_ms, unix_ms)) for part in _parts(memory, count)
    )


def _parts(memory: Memory, count: int) -> Iterator[Memory]:
    """Yield what each shard remembers."""
    events: list[list[Event]] = [[] for _ in range(count)]
    for event in memory.events.kept():
        events[shard_of(event.job_id, count)].append(event)
    for shard in range(count):

        def of_shard(values: Mapping[JobId, _Value], shard: int = shard) -> dict[JobId, _Value]:
            return {
                job_id: value
                for job_id, value in values.items()
                if shard_of(job_id, count) == shard
            }

        def of_barriers(
            values: Mapping[BarrierKey, _Value], shard: int = shard
        ) -> dict[BarrierKey, _Value]:
            return {
                key: value for key, value in values.items() if shard_of(key.job_id, count) == shard
            }

        yield replace(
            memory,
            jobs=of_shard(memory.jobs),
            nodes=of_shard(memory.nodes),
            barriers=of_barriers(memory.barriers),
            arrivals=of_barriers(memory.arrivals),
            counted=of_barriers(memory.counted),
            keys=of_shard(memory.keys),
            events=_log_of(memory.events, of_shard(memory.events.jobs), events[shard]),
            gone=of_shard(memory.gone),
        )


def _log_of(log: EventLog, jobs: Mapping[JobId, JobEvents], events: Sequence[Event]) -> EventLog:
    """Return the part of a log about some jobs. A reader's place in the log is one in the part."""
    known = {job_id: JobEvents(dropped=of_job.dropped) for job_id, of_job in jobs.items()}
    part = EventLog(log.last, log.dropped, log.evicted, jobs=known)
    part.take(tuple(events))
    return part
