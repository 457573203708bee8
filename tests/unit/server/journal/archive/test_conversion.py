"""One journal for all jobs becomes those of shards, and the other way round."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages.records import ClockMeasured, EpochRaised
from rallypoint.server.core.reads.replay import Memory
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.archive.conversion import with_shards, without_shards
from rallypoint.server.journal.archive.times import moved
from rallypoint.server.journal.codec.batches import decode_batch, encode_batch
from rallypoint.server.shards.hashing import shard_of
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


def test_shards_become_one_journal() -> None:
    """With all jobs as they were, in the order in which they were opened."""
    (back,) = memories_of(without_shards(with_shards(WHOLE, SHARDS)))
    (whole,) = memories_of(WHOLE)

    assert facts_of(back) == facts_of(whole)
    assert list(back.jobs) == JOBS
    assert (back.epoch, back.since_epoch) == (whole.epoch, whole.since_epoch)
    assert times_of(without_shards(with_shards(WHOLE, SHARDS))) == {(NOW_MS, UNIX_MS)}


def test_events_of_one_journal_have_new_numbers() -> None:
    """Higher than all before, in the order of their times; an old place is known to be lost."""
    (back,) = memories_of(without_shards(with_shards(WHOLE, SHARDS)))
    (whole,) = memories_of(WHOLE)
    before, after = whole.events.kept(), back.events.kept()

    numbers = [event.sequence for event in after]
    assert numbers == [whole.events.last + 1 + at for at in range(len(before))]
    assert [replace(event, sequence=0) for event in after] == [
        replace(event, sequence=0) for event in before
    ]
    for job_id in (*JOBS, None):
        assert back.events.lost(job_id) == whole.events.last


@pytest.mark.parametrize("later_ms", [4_000, 3_600_000, -3_600_000])
def test_clocks_of_shards_become_one(later_ms: int) -> None:
    """A shard that is behind moves forward, and no wait has less time left, although one of the
    others was written later, or where the wall clock is wrong."""
    divided = with_shards(WHOLE, SHARDS)
    ahead_ms = 70_000
    journals = [list(payloads) for payloads in divided.journals]
    mine = [job_id for job_id in JOBS if shard_of(job_id, SHARDS) == 2]
    at_ms, unix_ms = NOW_MS + ahead_ms, UNIX_MS + later_ms
    measured = encode_batch([ClockMeasured(at_ms, unix_ms)], at_ms, unix_ms)
    journals[2] = [batch_of(mine, EPOCH + 9, at_ms, unix_ms), measured]
    joined = without_shards(replace(divided, journals=tuple(map(tuple, journals))))
    (known,) = memories_of(joined)
    (whole,) = memories_of(WHOLE)

    assert times_of(joined) == {(at_ms, max(unix_ms, UNIX_MS))}
    assert known.clocks.find(at_ms) == unix_ms - at_ms
    for job_id in JOBS:
        by_ms = 0 if job_id in mine else ahead_ms
        if job_id not in mine:
            assert known.jobs[job_id] == moved(whole.jobs[job_id], by_ms)
            assert known.nodes[job_id] == {
                session: moved(node, by_ms) for session, node in whole.nodes[job_id].items()
            }
        (key,) = [one for one in whole.barriers if one.job_id == job_id]
        assert known.barriers[key] == moved(whole.barriers[key], by_ms)
        (arrival,) = known.arrivals[key].values()
        assert arrival.at_ms == 400_000 + by_ms
    fences = {left.fenced_until_ms for left in known.gone.values()}
    assert fences == {450_000, 450_000 + ahead_ms}
    assert known.epoch == EPOCH + 14
    moments = [event.at_ms for event in known.events.kept()]
    assert moments == sorted(moments)


@pytest.mark.parametrize("count", [1, 3, 16])
def test_number_of_shards_can_change(count: int) -> None:
    """No job is lost on the way."""
    changed = with_shards(with_shards(WHOLE, SHARDS), count)
    (whole,) = memories_of(WHOLE)

    assert len(changed.journals) == count
    jobs = {key: job for part in memories_of(changed) for key, job in part.jobs.items()}
    assert jobs == whole.jobs


def test_nothing_changes_without_need() -> None:
    """The same number of shards, or one: the batches stay what they are."""
    divided = with_shards(WHOLE, SHARDS)

    assert with_shards(divided, SHARDS) is divided
    assert without_shards(WHOLE) == WHOLE
    assert with_shards(WHOLE, 1).journals == WHOLE.journals
    assert without_shards(with_shards(WHOLE, 1)) == WHOLE


def test_shards_that_were_never_owned_are_left_out() -> None:
    """A store that coordinators have only begun to share."""
    some = contents_of(b"", batch_of(JOBS[:1]), b"", is_sharded=True)
    (known,) = memories_of(without_shards(some))
    none = without_shards(contents_of(b"", b"", is_sharded=True))

    assert list(known.jobs) == JOBS[:1]
    assert none.journals == ((),)
    assert with_shards(none, 3).journals == ((), (), ())


def test_epochs_never_fall() -> None:
    """The highest of all shards counts."""
    journals = [batch_of(JOBS[:1], EPOCH), batch_of(JOBS[1:2], EPOCH + 100)]
    (known,) = memories_of(without_shards(contents_of(*journals, is_sharded=True)))

    assert (known.epoch, known.since_epoch) == (EPOCH + 105, EPOCH + 100)
    assert (
        EpochRaised(EPOCH + 105, resumed=True)
        in decode_batch(
            without_shards(contents_of(*journals, is_sharded=True)).journals[0][0]
        ).records
    )
