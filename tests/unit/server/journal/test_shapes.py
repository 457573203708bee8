"""Structs and messages mirror each other: a field of one without a field of the other is found."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import pytest
from msgspec import NODEFAULT, Struct, defstruct
from msgspec.structs import fields, replace

from rallypoint.journal.v1 import (
    barrier_pb2,
    event_pb2,
    job_pb2,
    key_pb2,
    node_pb2,
    record_pb2,
    round_pb2,
    snapshot_pb2,
    verdict_pb2,
)
from rallypoint.server.core.memory.durable import default_of, durable_job, durable_node
from rallypoint.server.core.memory.replay import JobSnapshot
from rallypoint.server.core.messages.records import NodeJoined
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.model.round import Round
from rallypoint.server.core.model.volatile import Volatile
from rallypoint.server.journal.codec.batches import decode_batch, encode_batch
from rallypoint.server.journal.codec.fields import BadShape
from rallypoint.server.journal.codec.shapes import Shapes
from support.journal.contract import current_files
from support.journal.full import KINDS, Maker, names_of, types_in

TYPES = sorted({one for kind in KINDS for one in types_in(kind)}, key=lambda one: str(one.__name__))
"""Everything that records are made of."""
STRUCTS = [one for one in TYPES if issubclass(one, Struct)]
PAIRS = {
    "Attempt",
    "Counted",
    "DroppedEvents",
    "Fact",
    "FailureKey",
    "Label",
    "ParticipantArrival",
    "PlacedEntry",
    "RankRange",
    "RequestAnswer",
    "StartFailure",
}
"""Messages that stand for tuples."""
MODULES = (
    barrier_pb2,
    event_pb2,
    job_pb2,
    key_pb2,
    node_pb2,
    record_pb2,
    round_pb2,
    snapshot_pb2,
    verdict_pb2,
)


def shape_of(kind: Any, descriptor: Any) -> Any:
    return Shapes().struct(kind, descriptor)


def test_every_message_is_used() -> None:
    """A message or an enum without a struct is left over."""
    declared = {one.name for file in current_files() for one in file.message_type}
    declared |= {one.name for file in current_files() for one in file.enum_type}

    assert declared == {one.__name__ for one in TYPES} | PAIRS | {"Batch", "Record"}


@pytest.mark.parametrize("kind", STRUCTS)
def test_fields_of_an_earlier_format_have_defaults(kind: type[Struct]) -> None:
    """What an earlier version did not know is read as if it had not happened."""
    descriptor = _message_of(kind)
    shape = Shapes().struct(kind, descriptor.DESCRIPTOR)
    assert shape.encode is not None
    assert shape.decode is not None
    value = Maker().make(kind, "")
    for info in fields(kind):
        default = default_of(info)
        if info.name not in names_of(kind) or default is NODEFAULT:
            continue
        message = descriptor(**shape.encode(value))
        message.ClearField(info.name)

        assert default == getattr(shape.decode(message), info.name)


def _message_of(kind: type[Struct]) -> Any:
    (found,) = {getattr(one, kind.__name__) for one in MODULES if hasattr(one, kind.__name__)}
    return found


def test_nothing_durable_is_left_out() -> None:
    """The fields that no message has are those that the core calls volatile."""
    maker = Maker()
    job, node = maker.whole(Job), maker.whole(Node)
    records = (
        JobSnapshot(durable_job(replace(job, round=maker.whole(Round)))),
        NodeJoined(durable_node(replace(node, member=True))),
        NodeJoined(durable_node(replace(node, member=False, state=NodeState.BLOCKED))),
    )

    assert records == decode_batch(encode_batch(records, 1, 2)).records


def _struct(name: str, *of_fields: Any) -> Any:
    return defstruct(name, of_fields)


class Colour(Enum):
    RED = 1


class Place(NamedTuple):
    round: int
    key: int


GONE = ("ended_run", int, 0), ("round_number", int, 0), ("operations", tuple[str, ...], ())
PARTICIPANT = ("rank", int), ("name", str)


@pytest.mark.parametrize(
    ("kind", "descriptor", "words"),
    [
        (_struct("Gone", *GONE), job_pb2.Gone, r"without a field of the struct.*fenced_until_ms"),
        (
            _struct("Gone", *GONE, ("fenced_until_ms", int, 0), ("colour", int, 0)),
            job_pb2.Gone,
            r"without a proto field.*colour",
        ),
        (_struct("Left", *GONE), job_pb2.Gone, "Left is a Gone"),
        (_struct("Gone", *GONE, ("fenced_until_ms", str, "")), job_pb2.Gone, "does not fit"),
        (_struct("Gone", *GONE, ("fenced_until_ms", int, 5)), job_pb2.Gone, "to be optional: True"),
        (
            _struct("Gone", *GONE, ("fenced_until_ms", int | None, None)),
            job_pb2.Gone,
            "to be optional: True",
        ),
        (
            _struct("Gone", *GONE, ("fenced_until_ms", tuple[int, ...], ())),
            job_pb2.Gone,
            "does not fit",
        ),
        (
            _struct("Participant", ("kind", Colour), *PARTICIPANT),
            barrier_pb2.Participant,
            "different members",
        ),
        (Place, key_pb2.Place, "does not fit"),
    ],
)
def test_difference_is_found(kind: Any, descriptor: Any, words: str) -> None:
    """Before anything is written."""
    with pytest.raises(BadShape, match=words):
        shape_of(kind, descriptor.DESCRIPTOR)


def test_only_fields_with_defaults_can_be_left_out() -> None:
    """They could not be read again."""
    kind = _struct("Gone", ("colour", Volatile[int]), *GONE, ("fenced_until_ms", int, 0))

    with pytest.raises(BadShape, match="no default"):
        shape_of(kind, job_pb2.Gone.DESCRIPTOR)
