"""Records for a reader: without secrets, and only those about a job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from rallypoint.server.contract.node import show_session
from rallypoint.server.core.memory.replay import JournalRecord
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
from rallypoint.server.core.model.events import Event, EventKind
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.keyspace import Answer, Change, Entry, Place, Written
from rallypoint.server.core.model.shards import shard_of
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.archive.show import describe_records
from rallypoint.server.journal.codec.batches import encode_batch
from rallypoint.server.journal.codec.json_form import REDACTED
from support.journal.full import full_records

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
HELD = JobNoted(A, JobChanges(round=RoundChanges({"held_token": "password"})))


def shown(*found: JournalRecord, job_id: str = "") -> list[dict[str, Any]]:
    """Return what is shown of a journal with one batch."""
    payload = encode_batch(found, 12_345, 1_700_000_000_500)
    contents = Contents(identity="", secret=b"password", journals=((payload,),))
    return list(describe_records(contents, job_id))


def test_record_has_its_batch_and_time() -> None:
    """And its kind, with the names of the fields."""
    assert shown(EpochRaised(7)) == [
        {
            "batch": 1,
            "at": "2023-11-14T22:13:20.500+00:00",
            "now_ms": 12_345,
            "kind": "epoch_raised",
            "record": {"epoch": 7},
        }
    ]


@pytest.mark.parametrize("record", [WRITTEN, ARRIVED, HELD], ids=["key", "payload", "token"])
def test_secrets_are_hidden(record: JournalRecord) -> None:
    """Values of keys, payloads of barriers, and tokens."""
    text = json.dumps(shown(record))

    assert "password" not in text and "cGFzc3dvcmQ" not in text
    assert REDACTED in text


def test_session_is_shown_as_readers_see_it() -> None:
    """Its id opens the session, so it is not shown itself."""
    text = json.dumps(shown(NodeRemoved(A, SESSION)))

    assert SESSION not in text
    assert show_session(SESSION) in text


@pytest.mark.parametrize("record", full_records(), ids=lambda record: type(record).__name__)
def test_every_record_can_be_shown(record: JournalRecord) -> None:
    """Of any kind, as JSON; none is about a job that does not exist."""
    assert json.dumps(shown(record)).startswith('[{"batch": 1, ')
    assert shown(record, job_id="no such job") == []


def test_only_records_about_the_job_are_shown() -> None:
    """Also where the id of the job is within a key; what is about no job is left out."""
    found = shown(
        EpochRaised(7), WRITTEN, NodeRemoved(B, SESSION), ARRIVED, JobForgotten(B), job_id=A
    )

    assert [one["kind"] for one in found] == ["keys_written", "barrier_arrived"]


def test_only_events_of_the_job_are_shown() -> None:
    """A record of events has those of several jobs."""
    event = Event(1, A, EventKind.JOB_CREATED, "job_created", 1, 1, 1, 0, ())
    logged = EventsLogged((event, replace(event, sequence=2, job_id=B)))

    (one,) = shown(logged, EventsLogged((replace(event, sequence=3, job_id=B),)), job_id=A)
    assert [event["sequence"] for event in one["record"]["events"]] == [1]


def test_records_of_shards_come_in_the_order_of_their_times() -> None:
    """Each says its shard; those of a job come from its shard alone."""
    mine = shard_of(A, 2)
    epochs = {mine: (1, 3, 4), 1 - mine: (2, 5)}
    journals = tuple(
        tuple(encode_batch([EpochRaised(epoch), WRITTEN], epoch, epoch) for epoch in epochs[shard])
        for shard in range(2)
    )
    contents = Contents(identity="", secret=b"", journals=journals, is_sharded=True)

    found = [one for one in describe_records(contents) if one["kind"] == "epoch_raised"]
    assert [one["record"]["epoch"] for one in found] == [1, 2, 3, 4, 5]
    assert [one["shard"] for one in found] == [mine, 1 - mine, mine, mine, 1 - mine]
    assert [one["batch"] for one in found] == [1, 1, 2, 3, 2]
    about = list(describe_records(contents, A))
    assert [(one["shard"], one["now_ms"]) for one in about] == [(mine, 1), (mine, 3), (mine, 4)]
