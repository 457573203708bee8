"""Variants of a message, generated from its descriptor: every field at every boundary value."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.wire.limits import is_map

_POSITIVE = (2**31 - 1, 2**31, 2**32 - 1, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
NUMBERS = (-(2**63), -(2**31), -1, 0, 1, *_POSITIVE)
RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
TEXTS = ("", "\0", "a\nb", "\x1b]0;pwn\x07\x1b[31mred", "a b", "\u202e", "\U0010ffff", "x" * 2**20)
TIMES = (
    (0, 0),
    (-1, -999_999_999),
    (2**63 - 1, 999_999_999),
    (-(2**63), -999_999_999),
    (315_576_000_000, 0),
    (-315_576_000_000, 0),
    (0, 2**31 - 1),
    (0, -(2**31)),
    (31 * 86_400, 0),
)
"""Seconds and nanoseconds."""
ITEMS = 20_000
"""Entries of a list that is too long."""
UNKNOWN_ENUM = 999
UNKNOWN_FIELD = b"\xba\x3e\x03new"
"""Field 999, a string, which no message has."""

Change = Callable[[Any], None]
"""Changes a copy of the message in place."""


def variants(message: Message) -> Iterator[tuple[str, Any]]:
    """Yield every variant of a message, with a name: one field has one other value."""
    for name, change in changes(message):
        variant = copy.deepcopy(message)
        change(variant)
        yield name, variant


def changes(message: Message) -> Iterator[tuple[str, Change]]:
    yield "an unknown field", _add_unknown
    for field in message.DESCRIPTOR.fields:
        yield from _field_changes(message, field)


def _field_changes(message: Message, field: Any) -> Iterator[tuple[str, Change]]:
    name = field.name
    yield f"{name} absent", lambda one: one.ClearField(name)
    if is_map(field):
        yield from ((f"{name} {i}", change) for i, change in enumerate(_map_changes(name)))
    elif field.is_repeated:
        yield from _list_changes(message, field)
    elif field.message_type is not None:
        yield from _message_changes(message, field)
    else:
        for value in _values(field):
            yield f"{name} = {_brief(value)}", _setter(name, value)


def _add_unknown(message: Message) -> None:
    message.MergeFromString(UNKNOWN_FIELD)


def _setter(name: str, value: Any) -> Change:
    return lambda one: setattr(one, name, value)


def _brief(value: Any) -> str:
    return repr(value)[:30]


def _values(field: Any) -> tuple[Any, ...]:
    """Return the boundary values of one entry of a field."""
    if field.cpp_type in RANGES:
        low, high = RANGES[field.cpp_type]
        return tuple(number for number in NUMBERS if low <= number <= high)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return (0, UNKNOWN_ENUM, -1)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return (False, True)
    assert field.cpp_type == FieldDescriptor.CPPTYPE_STRING, field.full_name
    if field.type == FieldDescriptor.TYPE_BYTES:
        return tuple(text.encode() for text in TEXTS)
    return TEXTS


def _map_changes(name: str) -> Iterator[Change]:
    entries = [{text: "value"} for text in TEXTS] + [{"key": text} for text in TEXTS]
    for more in (*entries, {str(i): "" for i in range(1_000)}):
        yield _adder(name, more)


def _adder(name: str, more: dict[str, str]) -> Change:
    return lambda one: getattr(one, name).update(more)


def _list_changes(message: Message, field: Any) -> Iterator[tuple[str, Change]]:
    name = field.name
    entries = getattr(message, name)
    assert len(entries) > 0 or field.message_type is None, f"{field.full_name} needs an entry"

    def lengthen(one: Any) -> None:
        values = getattr(one, name)
        values.extend([copy.deepcopy(values[0])] * ITEMS if len(values) else [1] * ITEMS)

    yield f"{name} with {ITEMS} more", lengthen
    yield f"{name} twice", lambda one: getattr(one, name).extend(list(getattr(one, name)))
    if field.message_type is None:
        for value in _values(field):
            yield f"{name}[] = {_brief(value)}", _appender(name, value)
        return
    for index, entry in enumerate(entries):
        for inner, change in changes(entry):
            yield f"{name}[{index}].{inner}", _nested(_entry_finder(name, index), change)


def _appender(name: str, value: Any) -> Change:
    return lambda one: getattr(one, name).append(value)


def _entry_finder(name: str, index: int) -> Callable[[Any], Any]:
    return lambda one: getattr(one, name)[index]


def _message_changes(message: Message, field: Any) -> Iterator[tuple[str, Change]]:
    name = field.name
    if field.message_type.full_name in (Duration.DESCRIPTOR.full_name, _TIMESTAMP):
        for seconds, nanos in TIMES:
            yield f"{name} = {seconds} s {nanos} ns", _time_setter(name, seconds, nanos)
        return

    def empty(one: Any) -> None:
        one.ClearField(name)
        getattr(one, name).SetInParent()

    yield f"{name} empty", empty
    if message.HasField(name):
        for inner, change in changes(getattr(message, name)):
            yield f"{name}.{inner}", _nested(lambda one: getattr(one, name), change)


_TIMESTAMP = Timestamp.DESCRIPTOR.full_name


def _time_setter(name: str, seconds: int, nanos: int) -> Change:
    def change(one: Any) -> None:
        time = getattr(one, name)
        time.seconds, time.nanos = seconds, nanos
        time.SetInParent()

    return change


def _nested(find: Callable[[Any], Any], change: Change) -> Change:
    return lambda one: change(find(one))
