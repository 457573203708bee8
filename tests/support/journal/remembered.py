"""The journal of a coordinator with several jobs, each with everything that a job can have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from rallypoint.server.core.memory.replay import (
    BarrierSnapshot,
    JobSnapshot,
    JournalRecord,
    Memory,
    replay,
)
from rallypoint.server.core.messages.records import (
    EpochRaised,
    EventsLogged,
    JobForgotten,
    KeysWritten,
    NodeJoined,
)
from rallypoint.server.core.model.barrier import (
    Arrival,
    Barrier,
    BarrierKey,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.events import Event, EventKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Gone, Job
from rallypoint.server.core.model.keyspace import Answer, Change, Entry, Place
from rallypoint.server.core.model.node import Node
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.codec.batches import decode_batch, encode_batch
from rallypoint.server.journal.interface import SECRET_BYTES
from support.journal.full import Maker

IDENTITY = "0123456789abcdef" * 2
SECRET = bytes(range(SECRET_BYTES))
EPOCH = 1_700_000_000_000
NOW_MS = 500_000
UNIX_MS = 1_700_000_900_000
WHO = Participant(ParticipantKind.RANK, 0, "")


def jobs_of(count: int) -> list[JobId]:
    """Return ids of jobs."""
    return [JobId(f"job-{number}") for number in range(count)]


def records_about(job_id: JobId, number: int, epoch: int = EPOCH) -> Iterator[JournalRecord]:
    """Yield records of everything that a job can have; `number` is that of its first event."""
    maker = Maker()
    job: Job = replace(maker.make(Job, ""), job_id=job_id, opened_ms=1_000 + number)
    yield JobSnapshot(job)
    for _ in range(2):
        node: Node = maker.make(Node, "")
        yield NodeJoined(replace(node, identity=replace(node.identity, job_id=job_id)))
    key = BarrierKey(job_id, 1, 0, "x")
    yield BarrierSnapshot(
        Barrier(key, 3, opened_ms=400_000, deadline_ms=700_000, arrived=1),
        ((WHO, Arrival("r", 1, 400_000, b"p")),),
        ((WHO, ("r0", 2)),),
    )
    entry = Entry(b"value", epoch * 1_000 + 1, epoch * 1_000 + 1, 1)
    change = Change(entry.modified, Place(0, "k"), entry)
    yield KeysWritten(job_id, 1, epoch, 1, (change,), "r1", Answer(entry.modified, ()))
    events = (EventKind.JOB_CREATED, "job_created"), (EventKind.RUN_OPENED, "run_opened")
    yield EventsLogged(
        tuple(
            Event(number + at, job_id, kind, reason, 1_000 * (number + at), epoch, 1, 0, ())
            for at, (kind, reason) in enumerate(events)
        )
    )
    yield JobForgotten(JobId(f"old-{job_id}"), Gone(3, 7, ("o",), 450_000))


def records_of(jobs: Sequence[JobId], epoch: int = EPOCH) -> list[JournalRecord]:
    """Return the records of a coordinator with some jobs."""
    about = (
        record
        for number, job_id in enumerate(jobs)
        for record in records_about(job_id, epoch * 1_000 + 10 * number, epoch)
    )
    return [EpochRaised(epoch), EpochRaised(epoch + 5, resumed=True), *about]


def contents_of(*journals: bytes, is_sharded: bool = False) -> Contents:
    """Return a store whose journals have one batch each; an empty one has none."""
    batches = tuple((payload,) if payload else () for payload in journals)
    return Contents(identity=IDENTITY, secret=SECRET, journals=batches, is_sharded=is_sharded)


def batch_of(
    jobs: Sequence[JobId], epoch: int = EPOCH, now_ms: int = NOW_MS, unix_ms: int = UNIX_MS
) -> bytes:
    """Return the records of a coordinator with some jobs as one batch."""
    return encode_batch(records_of(jobs, epoch), now_ms, unix_ms)


def memory_in(payloads: Sequence[bytes]) -> Memory:
    """Return what a coordinator remembers that starts on a journal."""
    return replay(record for one in payloads for record in decode_batch(one).records)
