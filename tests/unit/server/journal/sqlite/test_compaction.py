"""Compaction beside a coordinator that works: it delays no batch, and the file stays small."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.codec.batches import encode_batches
from rallypoint.server.journal.compaction import COMPACT_ABOVE
from rallypoint.server.journal.sqlite import pages
from rallypoint.server.journal.sqlite.chain import Link
from rallypoint.server.journal.sqlite.journal import SqliteJournal
from support.journal.damage import NAME, fast_folder, load
from support.journal.stores import joined, large, small

ENCODE = "rallypoint.server.journal.sqlite.journal.encode_snapshot"
MIB = 1_048_576


async def test_append_overtakes_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a snapshot is encoded, and it may take for ever, batches are stored."""
    encoding, may_end = threading.Event(), threading.Event()

    def slow(records: Sequence[JournalRecord], now_ms: int, unix_ms: int) -> Iterator[bytes]:
        encoding.set()
        assert may_end.wait(20)
        return encode_batches(records, now_ms, unix_ms)

    monkeypatch.setattr(ENCODE, slow)
    journal = SqliteJournal.open(tmp_path / NAME)
    await journal.load()
    await journal.append(small(1), 1)
    await journal.compact(small(2), 2)
    assert await asyncio.to_thread(encoding.wait, 20)
    await journal.append(small(3), 3)
    may_end.set()
    await journal.close()

    assert joined([small(2), small(3)]) == load(tmp_path / NAME)


async def test_record_that_cannot_be_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in one record costs the snapshot, not the jobs: the old records stay."""

    def broken(records: Sequence[JournalRecord], now_ms: int, unix_ms: int) -> Iterator[bytes]:
        yield from encode_batches(records, now_ms, unix_ms)
        raise TypeError("a value that no field takes")

    journal = SqliteJournal.open(tmp_path / NAME)
    await journal.load()
    await journal.append(small(1), 1)
    with monkeypatch.context() as patch:
        patch.setattr(ENCODE, broken)
        await journal.compact(small(2), 2)
        await journal.append(small(3), 3)
        await journal.close()
    assert joined([small(1), small(3)]) == load(tmp_path / NAME)

    journal = SqliteJournal.open(tmp_path / NAME)
    await journal.load()
    await journal.compact(small(4), 4)
    await journal.close()
    assert list(small(4)) == load(tmp_path / NAME)


@pytest.mark.long
async def test_file_stays_small() -> None:
    """After 30,000 batches with compactions the file has the size of what it holds, about."""
    with fast_folder() as folder:
        journal = SqliteJournal.open(folder / NAME)
        await journal.load()
        for number in range(1, 30_001):
            await journal.append(small(number), number)
            if journal.length > 10_000:
                await journal.compact(joined([small(each) for each in range(300)]), number)
        await journal.close()
        sizes = {file.name: file.stat().st_size for file in folder.iterdir()}

    assert sizes[NAME] < 8 * MIB
    assert f"{NAME}-wal" not in sizes


async def test_files_stay_small_whatever_a_round_takes() -> None:
    """A round of 1,024 nodes takes 40 kB. The files have less than 20 MB at every moment."""
    sizes = []
    with fast_folder() as folder:
        journal = SqliteJournal.open(folder / NAME)
        await journal.load()
        for number in range(1, 801):
            await journal.append(large(number, 40_000), number)
            if journal.size > COMPACT_ABOVE:
                await journal.compact(joined([large(each, 40_000) for each in range(10)]), number)
            sizes.append(sum(file.stat().st_size for file in folder.iterdir()))
        await journal.close()

    assert max(sizes) < 20_000_000


def test_large_batches_are_deleted_a_few_at_a_time() -> None:
    """What a snapshot has replaced holds up no batch, however large it was."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    meta = pages.make(connection, "0" * 32, b"secret")
    for number in range(1, 8):
        pages.append(connection, Link(number, b""), bytes(pages.DROP_BYTES // 2))
    covered = replace(meta, base=Link(7, b""))

    left = [7]
    while pages.drop_some(connection, covered):
        left += connection.execute("SELECT COUNT(*) FROM batches").fetchone()
    connection.close()

    assert left == [7, 5, 3, 1, 0]


async def test_append_needs_no_long_turns(tmp_path: Path) -> None:
    """A loop that is busy gives the journal's thread the interpreter within a millisecond."""
    journal = SqliteJournal.open(tmp_path / NAME)
    try:
        assert sys.getswitchinterval() <= 0.001
    finally:
        await journal.close()
