"""A batch of records as bytes, and back.

A batch is one message, `rallypoint.journal.v1.Batch`. Its records are written one by one and put
together here, so that a thread that writes a long journal lets others run in between. The last
five bytes are the checksum of all before them, in every format: so what is damaged is not taken for
what a newer version has written.

Nothing is skipped. A record, a field or a value that this version does not know stops the reader.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from msgspec import Struct

from rallypoint.journal.v1 import batch_pb2
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.codec.kinds import KINDS, KINDS_BY_NAME
from rallypoint.server.journal.codec.shapes import BadMessage
from rallypoint.server.journal.interface import JournalUnreadable

FORMAT = 1
"""Format that this version writes, and the highest that it reads. Any addition raises it."""
PART_BYTES = 1_048_576
"""Bytes of a batch of a long list, about: etcd takes requests of at most 1.5 MiB."""
_DELIMITED, _FIXED32 = 2, 5
_CHECKSUM_BYTES = 4


class Batch(Struct, frozen=True):
    """Records that were appended together."""

    format: int
    now_ms: int
    """Journal time."""
    unix_ms: int
    """The same moment by the wall clock, as Unix time."""
    records: tuple[JournalRecord, ...]
    """In order."""


def encode_batch(records: Sequence[JournalRecord], now_ms: int, unix_ms: int) -> bytes:
    """Return a batch as bytes; equal batches have equal bytes."""
    return _join([encode_record(record) for record in records], now_ms, unix_ms)


def encode_batches(
    records: Iterable[JournalRecord], now_ms: int, unix_ms: int, most: int = PART_BYTES
) -> Iterator[bytes]:
    """Yield a long list of records as batches, each of about `most` bytes or of one record."""
    encoded: list[bytes] = []
    size = 0
    for record in records:
        one = encode_record(record)
        if encoded and size + len(one) > most:
            yield _join(encoded, now_ms, unix_ms)
            encoded, size = [], 0
        encoded.append(one)
        size += len(one)
    if encoded:
        yield _join(encoded, now_ms, unix_ms)


def encode_snapshot(records: Iterable[JournalRecord], now_ms: int, unix_ms: int) -> Iterator[bytes]:
    """Yield the batches of a snapshot; at least one, because that of nothing has times as well."""
    batches = encode_batches(records, now_ms, unix_ms)
    yield next(batches, None) or encode_batch((), now_ms, unix_ms)
    yield from batches


def decode_batch(data: bytes) -> Batch:
    """Return a batch.

    Raises:
        JournalUnreadable: when it is damaged, or a newer version has written it.
    """
    if not has_checksum(data):
        raise JournalUnreadable("the journal is damaged: a checksum does not match its batch")
    try:
        message = batch_pb2.Batch.FromString(data)
    except DecodeError:
        raise JournalUnreadable("the journal is damaged: a batch is not a message") from None
    check_format(message.format)
    _refuse_unknown(message, data)
    try:
        records = tuple(decode_record(record) for record in message.records)
    except BadMessage as error:
        raise unknown(str(error)) from None
    return Batch(message.format, message.now_ms, message.unix_ms, records)


def check_format(format: int) -> None:
    """Refuse a format that this version does not read.

    Raises:
        JournalUnreadable: it is from a newer version, or none at all.
    """
    if format < 1:
        raise JournalUnreadable("the journal is damaged: a batch has no format")
    if format > FORMAT:
        raise JournalUnreadable(
            f"a newer rallypoint wrote the journal (format {format}; this one reads {FORMAT}):"
            " upgrade this coordinator"
        )


def unknown(text: str) -> JournalUnreadable:
    """Return the error for what only a newer version knows."""
    return JournalUnreadable(
        f"a newer rallypoint wrote the journal ({text}): upgrade this coordinator"
    )


def to_message(record: JournalRecord) -> batch_pb2.Record:
    """Return a record as a message Record."""
    kind = KINDS[type(record)]
    message = batch_pb2.Record()
    getattr(message, kind.name).MergeFrom(kind.to_message(record))
    getattr(message, kind.name).SetInParent()
    return message


def encode_record(record: JournalRecord) -> bytes:
    """Return a record as a field of a batch."""
    kind = KINDS[type(record)]
    content = kind.to_message(record).SerializeToString()
    return _delimited(_RECORDS, _delimited(_tag(kind.number, _DELIMITED), content))


def decode_record(record: Any) -> JournalRecord:
    """Return the record of a message Record.

    Raises:
        BadMessage: it has something that this version does not know.
    """
    name = record.WhichOneof("kind")
    if name is None:
        raise BadMessage("a record without a kind")
    return KINDS_BY_NAME[name].from_message(getattr(record, name))


# --- The frame ---


def has_checksum(data: bytes) -> bool:
    """Return whether a batch ends with its checksum."""
    content = memoryview(data)[: -_CHECKSUM_BYTES - 1]
    return data[len(content) :] == _checksum(content)


def with_checksum(content: bytes) -> bytes:
    """Return a batch with its checksum."""
    return content + _checksum(content)


def _join(records: Sequence[bytes], now_ms: int, unix_ms: int) -> bytes:
    head = batch_pb2.Batch(format=FORMAT, now_ms=now_ms, unix_ms=unix_ms)
    content = b"".join((head.SerializeToString(), *records))
    return with_checksum(content)


def _checksum(content: bytes | memoryview) -> bytes:
    return _CHECKSUM + zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little")


def _delimited(tag: bytes, content: bytes) -> bytes:
    return b"".join((tag, _varint(len(content)), content))


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


_FIELDS = batch_pb2.Batch.DESCRIPTOR.fields_by_name
_RECORDS = _tag(_FIELDS["records"].number, _DELIMITED)
_CHECKSUM = _tag(_FIELDS["checksum"].number, _FIXED32)


# --- What a newer version wrote ---


def _refuse_unknown(message: Message, data: bytes) -> None:
    """Refuse a message that was read from `data` if it has an unknown field, anywhere in it."""
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise unknown(next(_find_unknown(type(message).FromString(data)), "an unknown field"))


def _find_unknown(message: Message) -> Iterator[str]:
    for field in UnknownFieldSet(message):  # type: ignore[attr-defined]  # a stub without it
        yield f"field {field.field_number} of {message.DESCRIPTOR.name}"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for one in value if descriptor.is_repeated else (value,):
                yield from _find_unknown(one)
