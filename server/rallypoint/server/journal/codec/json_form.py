"""A record as JSON, for people and bug reports, and back.

The form is protobuf's own, with the names of the .proto files: fields that are zero or absent are
left out, and bytes are base64. But numbers stay numbers, which Python and jq read as such.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message

from rallypoint.journal.v1 import batch_pb2
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.codec.batches import decode_record, to_message
from rallypoint.server.journal.codec.shapes import BadMessage
from rallypoint.server.journal.interface import JournalUnreadable

REDACTED = "(redacted)"


def to_json(record: JournalRecord, *, redact: bool = False) -> dict[str, Any]:
    """Return a record as an object with one entry: the name of its kind, and its fields.

    Args:
        record: any record.
        redact: replace what workers keep from others: their tokens, the values of their keys, and
            what they share at barriers. Such a record cannot be read again.
    """
    return _object(to_message(record), redact)


def from_json(data: object) -> JournalRecord:
    """Return the record that `to_json` has returned, perhaps in another version.

    Raises:
        JournalUnreadable: it is no record, has something that this version does not know, or was
            redacted.
    """
    message = batch_pb2.Record()
    if not isinstance(data, dict):
        raise _no_record("it is not an object")
    try:
        ParseDict(data, message)
        _refuse_redacted(data, message.DESCRIPTOR)
        return decode_record(message)
    except SystemError:  # what protobuf raises for half a surrogate pair as a name
        raise _no_record("the name of a value is not text") from None
    except (ParseError, BadMessage, ValueError, OverflowError) as error:
        raise _no_record(str(error).splitlines()[0]) from None


def _no_record(why: str) -> JournalUnreadable:
    return JournalUnreadable(f"no record of this version: {why}")


def _object(message: Message, redact: bool) -> dict[str, Any]:
    return {
        field.name: [_value(field, one, redact) for one in value]
        if field.is_repeated
        else _value(field, value, redact)
        for field, value in message.ListFields()
    }


def _value(field: FieldDescriptor, value: Any, redact: bool) -> Any:
    if redact and _is_secret(field):
        return REDACTED
    if field.message_type is not None:
        return _object(value, redact)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return b64encode(value).decode() if isinstance(value, bytes) else value


def _refuse_redacted(data: dict[str, Any], descriptor: Descriptor) -> None:
    """Refuse an object with a redacted field, anywhere in it."""
    for name, value in data.items():
        field = descriptor.fields_by_name.get(name)
        if field is None:
            continue
        if value == REDACTED and _is_secret(field):
            raise BadMessage(f"{descriptor.name}.{name} was redacted")
        if field.message_type is not None:
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, dict):
                    _refuse_redacted(one, field.message_type)


@cache
def _is_secret(field: FieldDescriptor) -> bool:
    return bool(field.GetOptions().debug_redact)
