"""Divides the journal of all jobs among shards, and puts the journals of shards together.

A job takes everything along: its nodes, rounds, keys, revisions, barriers, and what is known of it
after it was forgotten. Sessions and tokens stay valid, because identity and secret stay.

Events keep their numbers when a journal is divided. Shards number them independently. So when their
journals become one, all events get new numbers, higher than any before, in the order of their
times: a reader that continues learns that its place is lost, and begins with the oldest event.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.server.core.events.log import Event, EventLog, JobEvents
from rallypoint.server.core.model.barrier import BarrierKey
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Gone
from rallypoint.server.core.reads.replay import Memory, replay, snapshot
from rallypoint.server.core.state.state import remember_gone
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.archive.times import moved
from rallypoint.server.journal.codec.batches import decode_batch, encode_batches
from rallypoint.server.journal.interface import JournalUnreadable
from rallypoint.server.shards.hashing import shard_of

_Value = TypeVar("_Value")


class _Known(Struct, frozen=True):
    """What a journal holds."""

    memory: Memory
    now_ms: int
    """Journal time of the latest batch."""
    unix_ms: int
    """When that was, as Unix time."""

    def encode(self, memory: Memory) -> tuple[bytes, ...]:
        """Return the batches of a journal that holds `memory` at the same time."""
        return tuple(encode_batches(snapshot(memory), self.now_ms, self.unix_ms))


def with_shards(contents: Contents, count: int) -> Contents:
    """Return the same store with so many shards.

    Raises:
        JournalUnreadable: when a journal cannot be read.
    """
    if contents.is_sharded and contents.shard_count == count:
        return contents
    (payloads,) = without_shards(contents).journals
    journals: tuple[tuple[bytes, ...], ...]
    if count == 1 or not payloads:
        journals = (payloads, *((),) * (count - 1))
    else:
        known = _read(payloads)
        journals = tuple(known.encode(part) for part in _divide(known.memory, count))
    return replace(contents, journals=journals, is_sharded=True)


def without_shards(contents: Contents) -> Contents:
    """Return the same store with one journal for all jobs.

    Raises:
        JournalUnreadable: when a journal cannot be read.
    """
    if len(contents.journals) == 1:
        return replace(contents, is_sharded=False)
    parts = [_read(payloads) for payloads in contents.journals if payloads]
    journal: tuple[bytes, ...] = ()
    if parts:
        known = _join(parts)
        journal = known.encode(known.memory)
    return replace(contents, journals=(journal,), is_sharded=False)


def _read(payloads: Sequence[bytes]) -> _Known:
    batches = [decode_batch(payload) for payload in payloads]
    memory = replay(record for batch in batches for record in batch.records)
    for job_id, error in memory.broken.items():
        text = f"the records of job {job_id} do not fit ({type(error).__name__}: {error})"
        raise JournalUnreadable(f"{text}: please report this bug")
    return _Known(memory, batches[-1].now_ms, batches[-1].unix_ms)


# --- One journal becomes several ---


def _divide(memory: Memory, count: int) -> Iterator[Memory]:
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


# --- Several journals become one ---


def _join(parts: Sequence[_Known]) -> _Known:
    """Return what all journals hold together, by the clock that is ahead of all others.

    The latest batches of all become one moment: since its own, no time has passed for a shard.
    """
    ahead = max(parts, key=lambda part: part.now_ms)
    memories = [_moved(part.memory, ahead.now_ms - part.now_ms) for part in parts]
    jobs = sorted(
        (job for memory in memories for job in memory.jobs.values()),
        key=lambda job: (job.opened_ms, job.job_id),
    )
    joined = replace(
        ahead.memory,
        epoch=max(memory.epoch for memory in memories),
        since_epoch=max(memory.since_epoch for memory in memories),
        jobs={job.job_id: job for job in jobs},
        nodes=_union([memory.nodes for memory in memories]),
        barriers=_union([memory.barriers for memory in memories]),
        arrivals=_union([memory.arrivals for memory in memories]),
        counted=_union([memory.counted for memory in memories]),
        keys=_union([memory.keys for memory in memories]),
        events=_renumber([memory.events for memory in memories]),
        gone=_join_gone([memory.gone for memory in memories]),
    )
    return _Known(joined, ahead.now_ms, max(part.unix_ms for part in parts))


_Key = TypeVar("_Key")


def _union(parts: Sequence[Mapping[_Key, _Value]]) -> dict[_Key, _Value]:
    return {key: value for part in parts for key, value in part.items()}


def _moved(memory: Memory, by_ms: int) -> Memory:
    """Return a memory by a clock that is ahead by so much."""
    events = memory.events
    later = EventLog(events.last, events.dropped, events.evicted)
    later.take(tuple(moved(event, by_ms) for event in events.kept()))
    return replace(
        memory,
        jobs={job_id: moved(job, by_ms) for job_id, job in memory.jobs.items()},
        nodes={
            job_id: {session: moved(node, by_ms) for session, node in of_job.items()}
            for job_id, of_job in memory.nodes.items()
        },
        barriers={key: moved(one, by_ms) for key, one in memory.barriers.items()},
        arrivals={
            key: {who: moved(one, by_ms) for who, one in of_barrier.items()}
            for key, of_barrier in memory.arrivals.items()
        },
        events=later,
        gone={job_id: moved(left, by_ms) for job_id, left in memory.gone.items()},
    )


def _renumber(logs: Sequence[EventLog]) -> EventLog:
    """Return one log; what was known before any of its events counts as dropped."""
    last = max(log.last for log in logs)
    joined = EventLog(last, last, last)
    merged = heapq.merge(*(log.kept() for log in logs), key=lambda event: event.at_ms)
    joined.take(
        tuple(replace(event, sequence=sequence) for sequence, event in enumerate(merged, last + 1))
    )
    return joined


def _join_gone(parts: Sequence[Mapping[JobId, Gone]]) -> dict[JobId, Gone]:
    """Return what is known of forgotten jobs. The latest of each shard are kept longest."""
    aged = [
        (age, job_id, left)
        for part in parts
        for age, (job_id, left) in enumerate(reversed(tuple(part.items())))
    ]
    gone: dict[JobId, Gone] = {}
    for _, job_id, left in sorted(aged, key=lambda one: -one[0]):
        remember_gone(gone, job_id, left)
    return gone
