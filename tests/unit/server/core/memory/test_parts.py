"""Snapshots of keys and events: cut into parts, and whole again."""

from __future__ import annotations

from rallypoint.server.core.memory.parts import EVENTS_PER_PART, PART_BYTES, cut
from rallypoint.server.core.memory.replay import KeysRestored, Memory, replay, snapshot
from rallypoint.server.core.messages.records import EventsLogged
from rallypoint.server.core.model.events import EVENTS_PER_JOB_MAX, Event, EventKind, EventLog
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.keyspace import (
    Answer,
    Change,
    Entry,
    Keyspace,
    Place,
    Written,
    new_keyspace,
)
from rallypoint.server.journal.codec.batches import encode_record

EPOCH, JOB = 5, JobId("train")
VALUE_BYTES = 4_096
KEYS = 200


def write(space: Keyspace, key: str, value: bytes | None, round: int) -> None:
    """Write or delete (None) a key of the run (round 0) or of a round."""
    revision = space.revision + 1
    entry = None if value is None else Entry(value, revision, revision, 1)
    answer = Answer(revision, (Written(revision, entry=entry),), b"digest")
    space.take((Change(revision, Place(round, key), entry),), 3, f"{revision:032x}", answer)


def many_keys() -> Keyspace:
    """Return a keyspace with keys of both scopes, of which some were deleted."""
    space = new_keyspace(1, EPOCH)
    for number in range(KEYS):
        write(space, f"key/{number:04}", bytes(VALUE_BYTES), 3 * (number % 2))
    for number in range(0, KEYS, 5):
        write(space, f"key/{number:04}", None, 3 * (number % 2))
    return space


def many_events(per_job: tuple[int, ...]) -> EventLog:
    """Return a log with as many events of each job, one job after the other in turns."""
    log = EventLog()
    log.begin(EPOCH)
    for number in range(max(per_job)):
        jobs = [JobId(f"job-{job}") for job, count in enumerate(per_job) if number < count]
        log.take(
            tuple(
                Event(log.last + at, job, EventKind.NODE_JOINED, "node_joined", 7, EPOCH, 1, 2, ())
                for at, job in enumerate(jobs, 1)
            )
        )
    return log


def restored(memory: Memory) -> Memory:
    return replay(snapshot(memory))


def test_keys_come_back_from_their_parts() -> None:
    """With the changes and the requests that are remembered, in order."""
    memory = Memory(EPOCH, EPOCH, keys={JOB: many_keys()})
    again = restored(memory)

    assert memory == again
    assert memory.keys[JOB].weight == again.keys[JOB].weight


def test_parts_of_keys_are_small() -> None:
    """No record is much larger than a part and one value."""
    records = snapshot(Memory(EPOCH, EPOCH, keys={JOB: many_keys()}))
    parts = [record for record in records if isinstance(record, KeysRestored)]

    assert len(parts) >= 3 * KEYS * VALUE_BYTES // PART_BYTES - 3
    assert max(len(encode_record(part)) for part in parts) <= PART_BYTES + 2 * VALUE_BYTES


def test_keys_can_be_written_after_a_restart() -> None:
    """The restored keyspace counts on, and forgets its round as the other one does."""
    space = many_keys()
    again = restored(Memory(EPOCH, EPOCH, keys={JOB: space})).keys[JOB]
    for one in (space, again):
        write(one, "key/0001", b"later", 3)
        one.drop_round(3)

    assert space == again


def test_events_come_back_from_their_parts() -> None:
    """Those that their jobs have dropped stay away, wherever they are in the list."""
    log = many_events((EVENTS_PER_JOB_MAX + 100, EVENTS_PER_PART, 3))
    again = restored(Memory(EPOCH, EPOCH, events=log)).events

    assert log == again
    assert log.count == again.count == EVENTS_PER_JOB_MAX + EVENTS_PER_PART + 3
    for job in (None, *log.jobs):
        assert log.lost(job) == again.lost(job)
        assert log.find(job, 0, 10_000) == again.find(job, 0, 10_000)


def test_events_are_cut_into_parts() -> None:
    """None has more than EVENTS_PER_PART; all are kept, in order."""
    log = many_events((EVENTS_PER_JOB_MAX + 100, EVENTS_PER_JOB_MAX, 300))
    records = snapshot(Memory(EPOCH, EPOCH, events=log))
    parts = [record.events for record in records if isinstance(record, EventsLogged)]

    assert [event for part in parts for event in part] == log.kept()
    assert max(map(len, parts)) <= EVENTS_PER_PART < log.count


def test_events_follow_a_restored_log() -> None:
    """The same are dropped from both."""
    log = many_events((EVENTS_PER_JOB_MAX, 3))
    again = restored(Memory(EPOCH, EPOCH, events=log)).events
    late = Event(log.last + 1, JobId("job-0"), EventKind.NODE_JOINED, "node_joined", 9, 6, 1, 2, ())
    for one in (log, again):
        one.take((late,))

    assert log == again
    assert again.lost(JobId("job-0")) == EPOCH * 1_000


def test_cut_keeps_what_is_large_whole() -> None:
    """Each part has at least one entry, and nothing is lost or moved."""
    entries = [1, PART_BYTES * 3, 2, PART_BYTES // 2, PART_BYTES // 2, 5]

    assert list(cut(entries, lambda size: size)) == [
        (1, PART_BYTES * 3),
        (2, PART_BYTES // 2, PART_BYTES // 2),
        (5,),
    ]
    assert list(cut([], lambda size: size)) == []
