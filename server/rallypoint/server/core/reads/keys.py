"""Records of a snapshot that hold the keys of a job."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from rallypoint.server.core.keyspace.keyspace import Keyspace
from rallypoint.server.core.keyspace.values import Answer, Change, Entry, Place
from rallypoint.server.core.model.ids import JobId


class KeyspaceSnapshot(Struct, frozen=True):
    """A record that replaces all earlier ones of a job's keys; the three kinds below follow it."""

    job_id: JobId
    run: int
    revision: int
    round: int
    compacted: int
    forgotten: int


class KeySnapshot(Struct, frozen=True):
    """A key."""

    job_id: JobId
    place: Place
    entry: Entry


class ChangeSnapshot(Struct, frozen=True):
    """A change of a key that is remembered; they come oldest first."""

    job_id: JobId
    change: Change


class RequestSnapshot(Struct, frozen=True):
    """A request that is remembered; they come oldest first."""

    job_id: JobId
    request_id: str
    answer: Answer


KeysSnapshot = KeyspaceSnapshot | KeySnapshot | ChangeSnapshot | RequestSnapshot


def snapshot_keys(job_id: JobId, space: Keyspace) -> Iterator[KeysSnapshot]:
    """Return the fewest records from which the keys of a job can be restored."""
    yield KeyspaceSnapshot(
        job_id, space.run, space.revision, space.round, space.compacted, space.forgotten
    )
    for place in space.places:
        yield KeySnapshot(job_id, place, space.entries[place])
    for change in space.changes:
        yield ChangeSnapshot(job_id, change)
    for request_id, answer in space.requests.items():
        yield RequestSnapshot(job_id, request_id, answer)


def restore_keys(keys: dict[JobId, Keyspace], record: KeysSnapshot) -> None:
    """Apply a record of a snapshot to the keyspaces of all jobs."""
    match record:
        case KeyspaceSnapshot(job_id=job_id):
            keys[job_id] = Keyspace(
                record.run,
                record.revision,
                record.round,
                record.compacted,
                record.forgotten,
            )
        case KeySnapshot(job_id=job_id):
            keys[job_id].restore(record.place, record.entry)
        case ChangeSnapshot(job_id=job_id):
            keys[job_id].restore_change(record.change)
        case RequestSnapshot(job_id=job_id):
            keys[job_id].restore_request(record.request_id, record.answer)
