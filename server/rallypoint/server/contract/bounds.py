"""Checks every field of a message from a client against its range in the .proto files.

The ranges are compiled into one function per field, when a message of that type first arrives. A
check looks only at the fields that are set, so a heartbeat costs microseconds. What it lets pass
the converters need not check again; they add the rules about several fields.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.base.addresses import is_address
from rallypoint.base.limits import UNIX_MS_MAX
from rallypoint.base.printable import (
    is_printable_lines,
    to_printable_line,
    to_printable_lines,
)
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.v1 import job_pb2, limits_pb2
from rallypoint.wire.durations import set_ms, to_ms, to_unix_ms
from rallypoint.wire.limits import DAY_MS, Kind, Rule, find_rule, is_map, is_of

SPECS_MAX = 256
"""Specifications whose check is remembered: all agents of a job send the same one."""
SPEC_BYTES_MAX = 4_096
"""A larger one is checked each time."""

_FieldCheck = Callable[[Any, Any, int], None]
"""Checks one field that is set: its message, its value, and the clock in ms."""

_INTEGERS = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    }
)
_HEXADECIMAL = frozenset("0123456789abcdef")


def check(message: Message, clock_ms: int = 0) -> None:
    """Refuse wishes out of range, and bring facts into their range.

    Args:
        message: from a client; its facts are changed in place.
        clock_ms: the coordinator's clock, as Unix time. Only messages with an epoch need it.

    Raises:
        InvalidMessage: with the path of the first field that is out of range.
    """
    checks, required = _compile(message.DESCRIPTOR)
    for field, value in message.ListFields():
        check_field = checks.get(field.number)
        if check_field is not None:
            try:
                check_field(message, value, clock_ms)
            except InvalidMessage as invalid:  # a path is put together only when it is needed
                raise InvalidMessage(_join(field.name, invalid.path), invalid.problem) from None
    for name, has_presence, problem in required:
        is_missing = not message.HasField(name) if has_presence else not getattr(message, name)
        if is_missing:
            raise InvalidMessage(name, problem)


def _join(name: str, inner: str) -> str:
    """Return the path of a field in a message or list with this name."""
    return f"{name}.{inner}" if inner and inner[0] != "[" else name + inner


@cache
def _compile(
    message: Descriptor,
) -> tuple[dict[int, _FieldCheck], tuple[tuple[str, bool, str], ...]]:
    """Return the checks of a message by field number, and the fields that must be set.

    Each required field comes with whether its presence is tracked, and the problem if it is absent.
    """
    checks: dict[int, _FieldCheck] = {}
    required: list[tuple[str, bool, str]] = []
    for field in message.fields:
        rule = find_rule(field)
        check_field = _compile_field(field, rule)
        if check_field is not None:
            checks[field.number] = check_field
        if rule is not None and not field.is_repeated:
            problem = _problem_of_absence(field, rule)
            if problem:
                required.append((field.name, field.has_presence, problem))
    return checks, tuple(required)


def _problem_of_absence(field: FieldDescriptor, rule: Rule) -> str:
    """Return why a field must be set, or "" if it need not be."""
    if field.has_presence:
        return "is missing" if rule.required else ""
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if rule.chars_min:
            return _problem_of_form(rule)
        return "must not be empty" if rule.required else ""
    return _problem_of_number(rule) if rule.low > 0 else ""


def _compile_field(field: FieldDescriptor, rule: Rule | None) -> _FieldCheck | None:
    if is_map(field):
        assert rule is not None
        return _check_map(rule)
    if field.is_repeated:
        assert rule is not None
        return _check_list(field, rule)
    if field.message_type is not None:
        return _compile_message(field, rule)
    if rule is None:
        return None
    name, fix = field.name, _compile_value(field, rule)
    if fix is None:
        return None

    def check_field(message: Message, value: Any, clock_ms: int) -> None:
        fixed = fix(value, clock_ms)
        if fixed != value:
            setattr(message, name, fixed)

    return check_field


def _compile_message(field: FieldDescriptor, rule: Rule | None) -> _FieldCheck | None:
    if is_of(field, Duration.DESCRIPTOR):
        assert rule is not None
        return _check_duration(rule)
    if is_of(field, Timestamp.DESCRIPTOR):
        return _check_timestamp(field.name)
    if is_of(field, FieldMask.DESCRIPTOR):
        return None  # the reader of the request compares its paths with names of fields
    if is_of(field, job_pb2.JobSpec.DESCRIPTOR):
        return _check_spec
    return lambda _, value, clock_ms: check(value, clock_ms)


def _check_spec(message: Message, spec: job_pb2.JobSpec, clock_ms: int) -> None:
    packed = spec.SerializeToString()
    if len(packed) > SPEC_BYTES_MAX:
        check(spec, clock_ms)
    else:
        _check_packed_spec(packed)


@lru_cache(maxsize=SPECS_MAX)
def _check_packed_spec(packed: bytes) -> None:
    """Check a specification: wishes and enums, so nothing is changed, and no clock matters."""
    check(job_pb2.JobSpec.FromString(packed))


def _compile_value(field: FieldDescriptor, rule: Rule) -> Callable[[Any, int], Any] | None:
    """Return what checks a single value, and returns the value in range; None: nothing to check.

    It refuses with an empty path, for the caller to complete.
    """
    if field.cpp_type in _INTEGERS:
        return _fix_number(rule)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _fix_bytes(rule)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _fix_fact_text(rule) if rule.kind is Kind.FACT else _fix_text(rule)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM and rule.kind is Kind.WISH:
        return _fix_enum(field)
    return None


# --- Numbers and enums ----------------------------------------------------------------------------


def _fix_number(rule: Rule) -> Callable[[int, int], int]:
    low, high, ahead_ms = rule.low, rule.high, rule.ahead_ms
    is_fact, instead = rule.kind is Kind.FACT, rule.instead

    def fix(value: int, clock_ms: int) -> int:
        if ahead_ms and value > clock_ms + ahead_ms:
            how_far = _show_ms(ahead_ms)
            raise InvalidMessage("", f"is more than {how_far} ahead of our clock: check both")
        if low <= value <= high:
            return value
        if not is_fact:
            raise InvalidMessage("", _problem_of_number(rule))
        return min(max(value, low), high) if instead is None else instead

    return fix


def _problem_of_number(rule: Rule) -> str:
    return f"must be {rule.low} to {rule.high}"


def _fix_enum(field: FieldDescriptor) -> Callable[[int, int], int]:
    assert field.enum_type is not None
    known = frozenset(value.number for value in field.enum_type.values)

    def fix(value: int, clock_ms: int) -> int:
        if value not in known:
            raise InvalidMessage("", f"has the value {value}, which is unknown here")
        return value

    return fix


# --- Texts ----------------------------------------------------------------------------------------


def _fix_text(rule: Rule) -> Callable[[str, int], str]:
    chars_max, bytes_max = rule.chars_max, rule.bytes_max
    unit = f"{chars_max} characters" if chars_max else f"{bytes_max} bytes"

    def fix(value: str, clock_ms: int) -> str:
        length = len(value) if chars_max else len(value.encode())
        if length > (chars_max or bytes_max):
            raise InvalidMessage("", f"is too long: at most {unit}")
        if length < rule.chars_min or not _has_form(value, rule.form):
            raise InvalidMessage("", _problem_of_form(rule))
        return value

    return fix


def _fix_bytes(rule: Rule) -> Callable[[bytes, int], bytes]:
    most = rule.bytes_max

    def fix(value: bytes, clock_ms: int) -> bytes:
        if len(value) > most:
            raise InvalidMessage("", f"is too long: at most {most} bytes")
        return value

    return fix


def _has_form(text: str, form: limits_pb2.TextForm.ValueType) -> bool:
    match form:
        case limits_pb2.TEXT_FORM_WORD:
            return text.isprintable() and " " not in text
        case limits_pb2.TEXT_FORM_LINES:
            return is_printable_lines(text)
        case limits_pb2.TEXT_FORM_ADDRESS:
            return is_address(text)
        case limits_pb2.TEXT_FORM_HEX:
            return _HEXADECIMAL.issuperset(text)
        case _:
            return text.isprintable()


def _problem_of_form(rule: Rule) -> str:
    match rule.form:
        case limits_pb2.TEXT_FORM_WORD:
            return "must be printable, without spaces"
        case limits_pb2.TEXT_FORM_ADDRESS:
            return "must be an IP address or a host name"
        case limits_pb2.TEXT_FORM_HEX:
            return f"must be {rule.chars_min} lower-case hexadecimal digits"
        case _:
            return "must be printable"


def _fix_fact_text(rule: Rule) -> Callable[[str, int], str]:
    clean = to_printable_line
    if rule.form == limits_pb2.TEXT_FORM_LINES:
        clean = to_printable_lines
    most = rule.chars_max
    cut = slice(-most, None) if rule.keep_end else slice(most)
    first_cut = slice(-2 * most, None) if rule.keep_end else slice(2 * most)

    def fix(value: str, clock_ms: int) -> str:
        if len(value) <= most and value.isprintable():
            return value
        # Cut twice: cleaning a long text would take long, and it may make a text shorter.
        return clean(value[first_cut])[cut]

    return fix


# --- Times ----------------------------------------------------------------------------------------


def _check_duration(rule: Rule) -> _FieldCheck:
    low_ms, high_ms, is_fact = rule.low, rule.high, rule.kind is Kind.FACT
    problem = f"must be between {_show_ms(low_ms)} and {_show_ms(high_ms)}"

    def check_field(message: Message, value: Duration, clock_ms: int) -> None:
        if low_ms <= to_ms(value) <= high_ms and 0 <= value.nanos < 1_000_000_000:
            return
        if not is_fact:
            raise InvalidMessage("", problem)
        set_ms(value, min(max(to_ms(value), low_ms), high_ms))

    return check_field


def _show_ms(ms: int) -> str:
    days = ms // DAY_MS
    if days * DAY_MS != ms or days == 0:
        return f"{ms / 1000:g} s"
    return "1 day" if days == 1 else f"{days} days"


def _check_timestamp(name: str) -> _FieldCheck:
    """Drop a time that cannot be; times are for people only."""

    def check_field(message: Message, value: Timestamp, clock_ms: int) -> None:
        if not 0 <= to_unix_ms(value) <= UNIX_MS_MAX:
            message.ClearField(name)

    return check_field


# --- Lists and maps -------------------------------------------------------------------------------


def _check_list(field: FieldDescriptor, rule: Rule) -> _FieldCheck:
    items_max, is_fact = rule.items_max, rule.kind is Kind.FACT
    has_messages = field.message_type is not None
    fix = None if has_messages else _compile_value(field, rule)

    def check_field(message: Message, values: Any, clock_ms: int) -> None:
        if len(values) > items_max:
            if not is_fact:
                raise InvalidMessage("", f"has too many entries: at most {items_max}")
            del values[items_max:]
        for index, value in enumerate(values):
            try:
                if has_messages:
                    check(value, clock_ms)
                elif fix is not None and (fixed := fix(value, clock_ms)) != value:
                    values[index] = fixed
            except InvalidMessage as invalid:
                raise InvalidMessage(_join(f"[{index}]", invalid.path), invalid.problem) from None

    return check_field


def _check_map(rule: Rule) -> _FieldCheck:
    items_max, chars_max = rule.items_max, rule.chars_max

    def check_field(message: Message, values: Any, clock_ms: int) -> None:
        if len(values) > items_max:
            raise InvalidMessage("", f"has too many entries: at most {items_max}")
        for key, value in values.items():
            if not key:
                raise InvalidMessage("", "has an empty key")
            if len(key) > chars_max or len(value) > chars_max:
                raise InvalidMessage("", f"has too long an entry: at most {chars_max} characters")
            if not key.isprintable() or not value.isprintable():
                raise InvalidMessage("", "must be printable")

    return check_field
