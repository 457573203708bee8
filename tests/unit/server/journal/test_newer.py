"""A journal of a newer version: whatever is new in it stops the start, in one clear line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rallypoint.journal.v1 import batch_pb2
from rallypoint.server.journal.codec.batches import FORMAT, decode_batch, to_message, with_checksum
from rallypoint.server.journal.interface import JournalUnreadable
from support.journal.contract import PACKAGE
from support.journal.full import KINDS, full_records
from support.versions.ahead import NEW_ARM, NEW_FIELD, NEW_NUMBER, NEW_PART, Ahead

RECORDS = dict(zip(KINDS, full_records(), strict=False))
"""One of each kind."""
LINE_MAX = 120


@pytest.fixture(scope="module")
def ahead() -> Ahead:
    return Ahead(PACKAGE)


def read(ahead: Ahead, record: Any, *, format: int = FORMAT) -> str:
    """Return why this version refuses a batch with a record of the next one."""
    batch = ahead.make("Batch")
    batch.format = format
    batch.records.append(record)
    with pytest.raises(JournalUnreadable) as refused:
        decode_batch(with_checksum(batch.SerializeToString()))
    text = str(refused.value)
    assert "\n" not in text
    assert len(text) <= LINE_MAX
    return text


def grow(ahead: Ahead, kind: type) -> Any:
    """Return a record as a message of the next version; nothing new is in it."""
    data = to_message(RECORDS[kind]).SerializeToString()
    grown = ahead.make("Record")
    grown.ParseFromString(data)
    return grown


def parts(message: Any) -> Iterator[Any]:
    """Yield a message and all messages in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.is_repeated else (value,):
                yield from parts(one)


def test_higher_format_is_refused(ahead: Ahead) -> None:
    """Before anything else in it is looked at."""
    record = ahead.make("Record")
    getattr(record, NEW_ARM).SetInParent()

    expected = (
        f"a newer rallypoint wrote the journal (format {FORMAT + 1}; this one reads {FORMAT}):"
        " upgrade this coordinator"
    )
    assert expected == read(ahead, record, format=FORMAT + 1)


def test_new_kind_of_record_is_refused(ahead: Ahead) -> None:
    """It is never skipped."""
    record = ahead.make("Record")
    getattr(record, NEW_ARM).SetInParent()

    assert f"field {NEW_NUMBER + 2} of Record" in read(ahead, record)


@pytest.mark.parametrize("kind", KINDS)
def test_new_field_is_refused(ahead: Ahead, kind: type) -> None:
    """In any message of any record: a text, a message, or an arm of a oneof."""
    for number in range(len(list(parts(grow(ahead, kind))))):
        record = grow(ahead, kind)
        part = list(parts(record))[number]
        setattr(part, NEW_FIELD, "new")

        assert f"field {NEW_NUMBER} of {part.DESCRIPTOR.name}" in read(ahead, record)

    record = grow(ahead, kind)
    getattr(record, NEW_PART).SetInParent()
    assert f"field {NEW_NUMBER + 1} of Record" in read(ahead, record)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [NEW_NUMBER, 0], ids=["new", "none"])
def test_new_value_is_refused(ahead: Ahead, kind: type, value: int) -> None:
    """In any enum of any record; and none that has a value may be without one."""
    for number, part in enumerate(parts(grow(ahead, kind))):
        for field, _ in part.ListFields():
            if field.enum_type is not None:
                record = grow(ahead, kind)
                setattr(list(parts(record))[number], field.name, value)

                assert f"{field.enum_type.name} has no value {value}" in read(ahead, record)


def test_record_without_a_kind_is_refused(ahead: Ahead) -> None:
    """No version writes one."""
    assert "a record without a kind" in read(ahead, ahead.make("Record"))


def test_this_version_reads_its_own() -> None:
    """The twin: the same records without anything new."""
    batch = batch_pb2.Batch(format=FORMAT, records=map(to_message, RECORDS.values()))
    decoded = decode_batch(with_checksum(batch.SerializeToString()))

    assert tuple(RECORDS.values()) == decoded.records
