"""A journal as JSON lines, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.archive.lines import VERSION, read_lines, write_lines
from rallypoint.server.journal.codec.batches import FORMAT, encode_batch
from rallypoint.server.journal.interface import SECRET_BYTES, JournalUnreadable
from support.journal.full import full_records

IDENTITY = "0123456789abcdef" * 2
SECRET = bytes(range(SECRET_BYTES))
NEWER = "was written by a newer rallypoint|a newer rallypoint wrote the journal"


def contents_of(*batches: Sequence[JournalRecord]) -> Contents:
    """Return a journal with these batches, at 10, 20, … ms."""
    payloads = (
        encode_batch(batch, 10 * number, 1_000 + 10 * number)
        for number, batch in enumerate(batches, 1)
    )
    return Contents(identity=IDENTITY, secret=SECRET, journals=(tuple(payloads),))


def lines_of_two() -> list[bytes]:
    """Return the lines of a journal with two batches."""
    return list(write_lines(contents_of([EpochRaised(7)], [EpochRaised(8), EpochRaised(9)])))


def changed(line: bytes, change: dict[str, Any]) -> bytes:
    """Return a line with other values."""
    return json.dumps(json.loads(line) | change).encode() + b"\n"


def test_journal_comes_back() -> None:
    """With every kind of record and every field: equal bytes, hence equal records and times."""
    contents = contents_of(*([record] for record in full_records()), full_records())

    assert read_lines(write_lines(contents), "file") == contents


def shards_of_three() -> Contents:
    """Return a store of three shards; the second one has no batch."""
    (first, second), third = (
        contents_of([EpochRaised(7)], [EpochRaised(8)]).journals[0],
        contents_of([EpochRaised(9)]).journals[0],
    )
    return Contents(
        identity=IDENTITY, secret=SECRET, journals=((first, second), (), third), is_sharded=True
    )


def test_shards_come_back() -> None:
    """With their number, and each batch in its own."""
    contents = shards_of_three()

    lines = list(write_lines(contents))
    assert read_lines(lines, "file") == contents
    assert [json.loads(line).get("shard", 0) for line in lines[1:-1]] == [0, 0, 2]
    assert json.loads(lines[0])["shards"] == 3


@pytest.mark.parametrize(
    ("at", "change", "text"),
    [
        (1, {"shard": 3}, "line 2: there is no shard 3"),
        (1, {"shard": -1}, "line 2: there is no shard -1"),
        (0, {"shards": 0}, "line 4: there is no shard 2"),
        (0, {"shards": 9_999}, r"9999 is not a valid number of shards \(1 to 1024\)"),
        (0, {"shards": -1}, "-1 is not a valid number of shards"),
    ],
)
def test_shard_that_cannot_be_is_refused(at: int, change: dict[str, int], text: str) -> None:
    """In a line, or as their number."""
    lines = list(write_lines(shards_of_three()))
    lines[at] = changed(lines[at], change)

    with pytest.raises(JournalUnreadable, match=text):
        read_lines(lines, "file")


def test_journal_without_batches_comes_back() -> None:
    """A coordinator that was stopped at once leaves one."""
    assert read_lines(write_lines(contents_of()), "file") == contents_of()


def test_line_is_readable() -> None:
    """A batch is protobuf's JSON with the names of the fields, on one line."""
    _, first, _, last = lines_of_two()

    assert json.loads(first) == {
        "format": FORMAT,
        "now_ms": 10,
        "unix_ms": 1010,
        "records": [{"epoch_raised": {"epoch": 7}}],
    }
    assert json.loads(last)["batches"] == 2


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_file_that_was_cut_off_is_refused(kept: int) -> None:
    """After any line: its end is missing."""
    with pytest.raises(JournalUnreadable, match="file: its end is missing; export"):
        read_lines(lines_of_two()[:kept], "file")


@pytest.mark.parametrize("at", range(4))
def test_file_whose_line_was_cut_off_is_refused(at: int) -> None:
    """In the middle of any line."""
    lines = lines_of_two()
    lines[at:] = [lines[at][: len(lines[at]) // 2]]

    with pytest.raises(JournalUnreadable):
        read_lines(lines, "file")


def test_file_that_was_changed_is_refused() -> None:
    """A number in a batch, a batch that is missing, a line after the end, another secret."""
    first, second, third, end = lines_of_two()
    for lines in (
        [first, second.replace(b'"epoch":7', b'"epoch":6'), third, end],
        [first, third, end],
        [first, third, second, end],
        [first, second, third, end, b"\n"],
        [changed(first, {"identity": IDENTITY[::-1]}), second, third, end],
    ):
        with pytest.raises(JournalUnreadable, match="file: it was changed after it was exported"):
            read_lines(lines, "file")


@pytest.mark.parametrize(
    ("at", "change"),
    [
        (0, {"rallypoint_journal": VERSION + 1}),
        (1, {"format": FORMAT + 1}),
        (1, {"records": [{"epoch_raised": {"epoch": 7, "city": "Graz"}}]}),
        (1, {"records": [{"moon_rose": {}}]}),
    ],
    ids=["lines", "format", "field", "kind of record"],
)
def test_what_a_newer_version_wrote_is_refused(at: int, change: dict[str, Any]) -> None:
    """Nothing is skipped: not a field, not a record."""
    lines = lines_of_two()
    lines[at] = changed(lines[at], change)

    with pytest.raises(JournalUnreadable, match=f"{NEWER}|no record of this version"):
        read_lines(lines, "file")


@pytest.mark.parametrize("first", [b"", b"\n", b"{}\n", b'{"a": 1}\n', b"\xff\xfe\n", b"[]\n"])
def test_another_file_is_refused(first: bytes) -> None:
    """With what it should have been."""
    text = "file: this is not what `rallypoint journal export` writes"
    with pytest.raises(JournalUnreadable, match=text):
        read_lines([first] if first else [], "file")


@pytest.mark.parametrize("change", [{"identity": "x" * 32}, {"identity": "ab"}, {"secret": "AAAA"}])
def test_first_line_without_identity_or_secret_is_refused(change: dict[str, str]) -> None:
    """They have fixed lengths."""
    lines = lines_of_two()
    lines[0] = changed(lines[0], change)

    with pytest.raises(JournalUnreadable, match="has no valid identity or secret"):
        read_lines(lines, "file")


def test_damaged_batch_is_not_exported() -> None:
    """An export that could not be imported would be no backup."""
    ((payload,),) = contents_of([EpochRaised(7)]).journals
    damaged = Contents(identity=IDENTITY, secret=SECRET, journals=((payload[:-1] + b"?",),))

    with pytest.raises(JournalUnreadable, match="damaged"):
        list(write_lines(damaged))
