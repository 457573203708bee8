"""One journal for all jobs becomes those of shards."""

from __future__ import annotations

from typing import Any

from rallypoint.server.core.memory.replay import Memory
from rallypoint.server.core.model.shards import shard_of
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.archive.conversion import with_shards
from rallypoint.server.journal.codec.batches import decode_batch
from support.journal.remembered import (
    EPOCH,
    NOW_MS,
    UNIX_MS,
    batch_of,
    contents_of,
    jobs_of,
    memory_in,
)

JOBS = jobs_of(12)
SHARDS = 4
WHOLE = contents_of(batch_of(JOBS))


def memories_of(contents: Contents) -> list[Memory]:
    return [memory_in(payloads) for payloads in contents.journals]


def times_of(contents: Contents) -> set[tuple[int, int]]:
    """Return journal time and Unix time of the latest batch of each journal."""
    latest = [decode_batch(payloads[-1]) for payloads in contents.journals]
    return {(batch.now_ms, batch.unix_ms) for batch in latest}


def facts_of(memory: Memory) -> dict[str, Any]:
    """Return what is known of jobs, but for events."""
    names = ("jobs", "nodes", "barriers", "arrivals", "counted", "keys", "gone")
    return {name: getattr(memory, name) for name in names}


def test_every_job_comes_into_its_shard() -> None:
    """With everything about it, and nothing about another one."""
    divided = with_shards(WHOLE, SHARDS)
    (whole,) = memories_of(WHOLE)

    assert divided.is_sharded and len(divided.journals) == SHARDS
    assert (divided.identity, divided.secret) == (WHOLE.identity, WHOLE.secret)
    parts = memories_of(divided)
    for shard, part in enumerate(parts):
        mine = {job_id for job_id in JOBS if shard_of(job_id, SHARDS) == shard}
        assert mine and part.jobs.keys() == part.nodes.keys() == part.keys.keys() == mine
        assert {key.job_id for key in part.barriers} == mine
        assert {shard_of(job_id, SHARDS) for job_id in part.gone} <= {shard}
    joined = {
        name: {key: one for part in parts for key, one in getattr(part, name).items()}
        for name in facts_of(whole)
    }
    assert joined == facts_of(whole)
    assert times_of(divided) == {(NOW_MS, UNIX_MS)}


def test_shards_continue_epochs() -> None:
    """Each shard may be higher afterwards; none is lower than the journal was."""
    for part in memories_of(with_shards(WHOLE, SHARDS)):
        assert (part.epoch, part.since_epoch) == (EPOCH + 5, EPOCH)


def test_reader_of_a_job_continues_in_its_shard() -> None:
    """From any place that it may have, also the latest event of another job: nothing is shown
    twice, skipped, or refused."""
    (whole,) = memories_of(WHOLE)
    parts = memories_of(with_shards(WHOLE, SHARDS))
    for job_id in JOBS:
        log = parts[shard_of(job_id, SHARDS)].events
        assert (log.last, log.lost(job_id)) == (whole.events.last, whole.events.lost(job_id))
        for after in (0, *range(EPOCH * 1_000 - 1, whole.events.last + 1)):
            expected = whole.events.find(job_id, after, 100).events
            assert log.find(job_id, after, 100).events == expected


def test_shard_without_jobs_is_no_new_journal() -> None:
    """A new one would believe that others had been at work before."""
    divided = with_shards(contents_of(batch_of(JOBS[:1])), SHARDS)

    for part in memories_of(divided):
        assert part.epoch == EPOCH + 5
        assert part.events.last == memory_in(WHOLE.journals[0]).events.last - 10 * (len(JOBS) - 1)


def test_one_shard_has_the_same_batches() -> None:
    """They stay what they are, and so does a journal without any."""
    assert with_shards(WHOLE, 1).journals == WHOLE.journals
    assert with_shards(contents_of(b""), 3).journals == ((), (), ())
