"""Records as bytes: they come back as they were, and what is not understood is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rallypoint.journal.v1 import batch_pb2
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.codec import batches
from rallypoint.server.journal.codec.batches import (
    FORMAT,
    Batch,
    decode_batch,
    encode_batch,
    encode_batches,
)
from rallypoint.server.journal.interface import JournalUnreadable
from support.journal.full import full_records
from support.journal.values import KINDS, records, values

BATCHES = st.lists(records(), min_size=1, max_size=4)
NOW_MS, UNIX_MS = 12_345, 1_790_000_000_000
LIMIT_S = 60


@pytest.mark.parametrize("kind", KINDS)
def test_record_comes_back(kind: type[JournalRecord]) -> None:
    """With every field, whatever its value."""

    @settings(max_examples=25, deadline=None)
    @given(values(kind))
    def check(record: JournalRecord) -> None:
        assert Batch(FORMAT, 5, 6, (record,)) == decode_batch(encode_batch([record], 5, 6))

    check()


@settings(max_examples=20, deadline=None)
@given(BATCHES)
def test_batch_is_one_message(batch: list[JournalRecord]) -> None:
    """Any program that has the .proto files reads it."""
    data = encode_batch(batch, NOW_MS, UNIX_MS)
    message = batch_pb2.Batch.FromString(data)

    assert (FORMAT, NOW_MS, UNIX_MS) == (message.format, message.now_ms, message.unix_ms)
    assert len(batch) == len(message.records)
    assert data == message.SerializeToString(deterministic=True)


@settings(max_examples=20, deadline=None)
@given(BATCHES)
def test_equal_records_have_equal_bytes(batch: list[JournalRecord]) -> None:
    """However they came to be: sets have no order."""
    again = decode_batch(encode_batch(batch, NOW_MS, UNIX_MS))

    assert encode_batch(again.records, NOW_MS, UNIX_MS) == encode_batch(batch, NOW_MS, UNIX_MS)


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.long)])
def test_flipped_byte_is_noticed(step: int) -> None:
    """No damage decodes to other records, and none raises anything else."""
    data = bytearray(encode_batch(full_records(), NOW_MS, UNIX_MS))
    for at in range(0, len(data), step):
        before, data[at] = data[at], data[at] ^ (at % 255 + 1)
        with pytest.raises(JournalUnreadable, match="damaged"):
            decode_batch(bytes(data))
        data[at] = before

    assert decode_batch(bytes(data))


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.long)])
def test_truncation_is_noticed(step: int) -> None:
    """At any byte, the first one included."""
    data = encode_batch(full_records(), NOW_MS, UNIX_MS)
    for length in range(0, len(data), step):
        with pytest.raises(JournalUnreadable, match="damaged"):
            decode_batch(data[:length])


def test_memory_loads_no_codec() -> None:
    """A coordinator without a durable journal starts without the time for protobuf's records."""
    program = (
        "import sys, rallypoint.cli.main, rallypoint.server.serve\n"
        "import rallypoint.server.journal.memory\n"
        "print(*(name for name in sys.modules if name.startswith('rallypoint.journal')))"
    )
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert ("\n", "", 0) == (done.stdout, done.stderr, done.returncode)


@settings(max_examples=15, deadline=None)
@given(BATCHES, st.data())
def test_damage_below_the_checksum_is_contained(
    batch: list[JournalRecord], data: st.DataObject
) -> None:
    """Bytes that are no records raise nothing else, even if their checksum is right."""
    content = bytearray(encode_batch(batch, NOW_MS, UNIX_MS)[:-5])
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decoded = decode_batch(batches.with_checksum(bytes(content)))
    except JournalUnreadable as error:
        assert len(str(error)) <= 120
        return

    again = encode_batch(decoded.records, decoded.now_ms, decoded.unix_ms)
    assert replace(decoded, format=batches.FORMAT) == decode_batch(again)


@settings(max_examples=15, deadline=None)
@given(st.lists(records(), max_size=8), st.integers(1, 400))
def test_long_list_becomes_several_batches(batch: list[JournalRecord], most: int) -> None:
    """In order; a batch is larger than asked for only if it has one record."""
    parts = [decode_batch(one) for one in encode_batches(batch, NOW_MS, UNIX_MS, most)]

    assert batch == [record for part in parts for record in part.records]
    for part in parts:
        assert part.now_ms == NOW_MS
        sizes = [len(batches.encode_record(record)) for record in part.records]
        assert sum(sizes) <= most or len(sizes) == 1
