"""Records for a reader: without secrets, and only those about a job."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from msgspec.structs import replace

from rallypoint.server.core.events.kinds import EventKind
from rallypoint.server.core.events.log import Event
from rallypoint.server.core.keyspace.values import Answer, Change, Entry, Place, Written
from rallypoint.server.core.messages.records import (
    BarrierArrived,
    EpochRaised,
    EventsLogged,
    JobChanges,
    JobForgotten,
    JobNoted,
    KeysWritten,
    NodeRemoved,
    RoundChanges,
)
from rallypoint.server.core.model.barrier import (
    NO_ONE,
    Arrival,
    BarrierKey,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.reads.replay import JournalRecord
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.archive.show import describe_records
from rallypoint.server.journal.codec.batches import encode_batch
from rallypoint.server.rpc.views.node import digest_of_session
from support.journal.values import records

A, B = JobId("a"), JobId("b")
SESSION = SessionId("5e55" * 8)
ENTRY = Entry(b"password", 1, 1, 1)
WRITTEN = KeysWritten(
    A, 1, 1, 1, (Change(1, Place(0, "k"), ENTRY),), "r", Answer(1, (Written(entry=ENTRY),))
)
ARRIVED = BarrierArrived(
    BarrierKey(A, 1, 1, "x"),
    1,
    NO_ONE,
    0,
    Participant(ParticipantKind.RANK, 0, ""),
    Arrival("r", 1, 1, b"password"),
)
HELD = JobNoted(A, JobChanges(round=RoundChanges(held_token="password")))


def shown(*found: JournalRecord, job_id: str = "", has_values: bool = False) -> list[object]:
    """Return what is shown of a journal with one batch."""
    contents = Contents(
        identity="", secret=b"password", payloads=(encode_batch(found, 12_345, 1_700_000_000_500),)
    )
    return list(describe_records(contents, job_id=job_id, has_values=has_values))
