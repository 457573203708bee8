"""The ranges of all fields that clients send, read from the options in the .proto files.

`limits.proto` says what the options mean, and what holds where they say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from msgspec import Struct

from rallypoint.v1 import (
    agent_service_pb2,
    barrier_service_pb2,
    coordinator_service_pb2,
    event_service_pb2,
    evidence_service_pb2,
    job_service_pb2,
    key_value_service_pb2,
    limits_pb2,
    node_service_pb2,
    worker_service_pb2,
)
from rallypoint.v1.limits_pb2 import TextForm
from rallypoint.wire.durations import to_ms

PACKAGE = "rallypoint.v1"
NUMBER_MAX = 2**53 - 1
"""The highest number that JSON and JavaScript can hold."""
DAY_MS = 86_400_000
WISHED_MS_MAX = 30 * DAY_MS
OTHER_MS_MAX = 100 * 365 * DAY_MS + 25 * DAY_MS
SERVICES = tuple(
    service
    for file in (
        agent_service_pb2,
        barrier_service_pb2,
        coordinator_service_pb2,
        event_service_pb2,
        evidence_service_pb2,
        job_service_pb2,
        key_value_service_pb2,
        node_service_pb2,
        worker_service_pb2,
    )
    for service in file.DESCRIPTOR.services_by_name.values()
)
"""Descriptors of the services that the coordinator offers."""

LEAST_REQUEST_BYTES = 64 * 1024
"""Bytes that every request may have. The reads of the contract need less; the rest is for fields of
newer clients."""
WRITES_BYTES_MAX = 1_048_576
"""Most bytes of the values of one WriteKeysRequest, the expected ones among them."""
EVIDENCE_BYTES_MAX = 1_048_576
"""Most bytes of the workers of one ReportEvidenceRequest."""
_WHOLE_BYTES_MAX = {
    "rallypoint.v1.ReportEvidenceRequest": EVIDENCE_BYTES_MAX + 4_096,
    # Its values have a limit together; the rest is 256 keys, with their tags and lengths.
    "rallypoint.v1.WriteKeysRequest": WRITES_BYTES_MAX + 256 * 1024,
}
"""Most bytes of requests whose parts are bounded together, by their full names."""
_TAG_BYTES = 8
"""Of a field, or of an entry of a list: its tag, and its length."""
_NUMBER_BYTES = 24
"""Of a number, or of a message of two numbers such as Duration."""

_HIGHEST = {
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_INT64: NUMBER_MAX,
    FieldDescriptor.CPPTYPE_UINT64: NUMBER_MAX,
}


class Kind(Enum):
    """What a field says, and so what happens to a value out of range."""

    WISH = "wish"  # refused
    FACT = "fact"  # replaced by the nearest one in range
    ECHO = "echo"  # refused; a newer version's value of an enum is kept


class Rule(Struct, frozen=True):
    """The range of one field."""

    kind: Kind
    required: bool
    low: int
    """Lowest number, or shortest duration in ms."""
    high: int
    """Highest number, or longest duration in ms."""
    instead: int | None
    """Number that replaces a fact out of range; None: the nearest one in range."""
    ahead_ms: int
    """How far a Unix time in ms may be ahead of the clock; 0: the number is no time."""
    form: TextForm.ValueType
    chars_min: int
    chars_max: int
    """Most characters of a string; 0: `bytes_max` counts."""
    bytes_max: int
    keep_end: bool
    items_max: int
    """Most entries of a list or map."""


def find_rule(field: FieldDescriptor) -> Rule | None:
    """Return the rule of a field, or None if it has none."""
    options = field.GetOptions().Extensions
    for kind, option in _OPTIONS.items():
        if option in options:
            return _to_rule(field, kind, options[option])
    return None


_OPTIONS = {Kind.WISH: limits_pb2.wish, Kind.FACT: limits_pb2.fact, Kind.ECHO: limits_pb2.echo}


def _to_rule(field: FieldDescriptor, kind: Kind, limit: limits_pb2.Limit) -> Rule:
    low, high = limit.min, _HIGHEST.get(field.cpp_type, 0)
    if limit.HasField("max"):
        high = limit.max
    if is_of(field, Duration.DESCRIPTOR):
        longest_ms = WISHED_MS_MAX if kind is Kind.WISH else OTHER_MS_MAX
        low = to_ms(limit.shortest)
        high = to_ms(limit.longest) if limit.HasField("longest") else longest_ms
    return Rule(
        kind=kind,
        required=limit.required,
        low=low,
        high=high,
        instead=limit.instead if limit.HasField("instead") else None,
        ahead_ms=to_ms(limit.ahead),
        form=limit.form,
        chars_min=limit.min_chars,
        chars_max=limit.max_chars,
        bytes_max=limit.max_bytes,
        keep_end=limit.keep_end,
        items_max=limit.max_items,
    )


def is_of(field: FieldDescriptor, message: Descriptor) -> bool:
    """Return whether a field holds messages of this type."""
    return field.message_type is not None and field.message_type.full_name == message.full_name


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map."""
    message = field.message_type
    return message is not None and bool(message.GetOptions().map_entry)


def client_messages() -> Iterator[Descriptor]:
    """Yield every message that a client can send, each once, requests before their parts."""
    queue = [method.input_type for service in SERVICES for method in service.methods]
    seen: set[str] = set()
    while queue:
        message = queue.pop(0)
        if message.full_name not in seen and message.full_name.startswith("rallypoint."):
            seen.add(message.full_name)
            yield message
            queue += [
                field.message_type
                for field in message.fields
                if field.message_type is not None and not is_map(field)
            ]


def request_bytes_max(request: Descriptor) -> int:
    """Return how many bytes the request of a call may have: as many as its fields may.

    It is counted in blocks of 64 KiB. Messages on streams of agents have no smaller limit than
    gRPC's own: a Hello has the exits of thousands of workers.
    """
    most = _WHOLE_BYTES_MAX.get(request.full_name) or _bytes_max(request)
    return math.ceil(max(most, 1) / LEAST_REQUEST_BYTES) * LEAST_REQUEST_BYTES


def _bytes_max(message: Descriptor) -> int:
    return sum(_field_bytes_max(field) for field in message.fields)


def _field_bytes_max(field: FieldDescriptor) -> int:
    rule = find_rule(field)
    items = 1 if rule is None else max(rule.items_max, 1)
    if rule is not None and field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        size = rule.bytes_max or 4 * rule.chars_max  # UTF-8
    elif field.message_type is not None and field.message_type.file.package == PACKAGE:
        size = _bytes_max(field.message_type)
    else:
        size = _NUMBER_BYTES
    return items * (size + _TAG_BYTES)
