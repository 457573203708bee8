"""Records as JSON: they come back as they were, and secrets can be left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages.records import (
    BarrierArrived,
    JobChanges,
    JobNoted,
    KeysWritten,
    RoundChanges,
)
from rallypoint.server.core.model.barrier import Arrival, BarrierKey, Participant, ParticipantKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.keyspace import Answer, Change, Entry, Place, Written
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.journal.codec.json_form import REDACTED, from_json, to_json
from rallypoint.server.journal.interface import JournalUnreadable
from support.journal.contract import current_files, list_fields
from support.journal.values import KINDS, values

JOB = JobId("train")
SECRET = b"secret"
STOPPED = RoundChanges({"stop_ms": 7, "stop_reason": RoundReason.NODE_LOST})
ENTRY = Entry(SECRET, 1, 1, 1)
SECRETS: list[JournalRecord] = [
    JobNoted(JOB, JobChanges(round=RoundChanges({"held_token": "secret"}))),
    KeysWritten(
        JOB,
        1,
        2,
        3,
        (Change(1, Place(0, "key"), ENTRY),),
        "",
        Answer(1, (Written(1, entry=ENTRY),)),
    ),
    BarrierArrived(
        BarrierKey(JOB, 1, 1, "epoch"),
        1,
        None,
        5,
        Participant(ParticipantKind.RANK, 0, ""),
        Arrival("a" * 32, 1, 5, SECRET),
    ),
]
"""Records with something that workers keep from others."""


@pytest.mark.parametrize("kind", KINDS)
def test_record_comes_back(kind: type[JournalRecord]) -> None:
    """Through the text of a line."""

    @settings(max_examples=8, deadline=None)
    @given(values(kind))
    def check(record: JournalRecord) -> None:
        assert record == from_json(json.loads(json.dumps(to_json(record))))

    check()


def test_names_are_those_of_the_proto_files() -> None:
    """Numbers are numbers, also large ones."""
    stopped = {"stop_ms": 7, "stop_reason": "ROUND_REASON_NODE_LOST"}
    expected = {"job_id": "train", "changes": {"values": {}, "round": {"values": stopped}}}

    assert {"job_noted": expected} == to_json(JobNoted(JOB, JobChanges(round=STOPPED)))


@pytest.mark.parametrize("record", SECRETS, ids=lambda record: type(record).__name__)
def test_secrets_can_be_left_out(record: JournalRecord) -> None:
    """Such a record cannot be read again."""
    redacted = to_json(record, redact=True)

    assert REDACTED in json.dumps(redacted)
    assert not any(word in json.dumps(redacted) for word in ("secret", "c2VjcmV0"))
    with pytest.raises(JournalUnreadable, match="was redacted"):
        from_json(redacted)


def test_every_token_is_a_secret() -> None:
    """Whatever message has one, and so is what workers share."""
    secrets = {
        f"{message.name}.{field.name}"
        for file in current_files()
        for message in file.message_type
        for field in message.field
        if field.options.debug_redact
    }
    tokens = {line.split(" ")[0] for line in list_fields(current_files()) if "token" in line}

    assert tokens | {"Arrival.payload", "Entry.value"} == secrets


def reason(name: str) -> dict[str, Any]:
    return {"job_noted": {"job_id": "train", "changes": {"values": {"next_reason": name}}}}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "without a kind"),
        ({"round_paused": {}}, "round_paused"),
        ({"node_removed": {"job_id": 5}}, "job_id"),
        ({"node_removed": {"job_id": "train", "colour": 1}}, "colour"),
        (reason("ROUND_REASON_TIRED"), "ROUND_REASON_TIRED"),
        ({"clock_measured": {"at_ms": 2**63}}, "at_ms"),
        (reason("ROUND_REASON_UNSPECIFIED"), "RoundReason"),
        ({"job_noted": {"job_id": "train"}}, "changes is missing"),
        ({"job_noted": {"job_id": "train", "changes": None}}, "changes is missing"),
        ({"clock_measured": {"at_ms": float("inf")}}, "integer: inf"),
        ({"node_removed": {"job_id": "\ud800"}}, "surrogate"),
        (reason("\ud800"), "is not text"),
        ([], "not an object"),
    ],
)
def test_other_objects_are_refused(data: Any, words: str) -> None:
    """Each with the reason."""
    with pytest.raises(JournalUnreadable, match=words):
        from_json(data)
