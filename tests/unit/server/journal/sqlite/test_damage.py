"""Damaged files: what was acknowledged is there, or the start is refused; nothing is invented."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.sqlite.journal import SqliteJournal
from support.journal.damage import (
    NAME,
    PAGE,
    Copy,
    copy_of,
    fast_folder,
    flipped,
    load,
    outcome,
)
from support.journal.stores import joined, large, small

FRAME = 24 + PAGE
"""Bytes of a frame of the WAL: one page, and what SQLite notes about it."""
LAST_FRAMES = 2
SAMPLE = 150
"""Places that `make test` looks at."""
PAGE_SAMPLE = 5_000
"""Places of the main file that the long tests look at."""
BATCHES = [small(number) for number in range(1, 9)]


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as folder:
        yield folder


async def in_wal(folder: Path) -> Copy:
    """Return a journal whose last commits are only in the WAL."""
    journal = SqliteJournal.open(folder / NAME)
    await journal.load()
    for number, batch in enumerate(BATCHES):
        await journal.append(batch, number)
    copy = copy_of(journal.path)
    await journal.close()
    assert len(copy.wal) > (len(BATCHES) + LAST_FRAMES) * FRAME
    return copy


async def in_file(folder: Path) -> tuple[Copy, list[JournalRecord]]:
    """Return a journal with a snapshot and batches after it, all in the main file."""
    journal = SqliteJournal.open(folder / NAME)
    await journal.load()
    for number in range(40):
        await journal.append(small(number), number)
    snapshot = (*joined(BATCHES), *large(9, 3 * PAGE))
    await journal.compact(snapshot, 50)
    for number in range(50, 70):
        await journal.append(small(number), number)
    await journal.close()
    copy = copy_of(journal.path)
    assert (b"", True) == (copy.wal, len(copy.db) > 8 * PAGE)
    return copy, [*snapshot, *joined([small(number) for number in range(50, 70)])]


def some(places: range, *, all: bool, most: int = SAMPLE) -> Iterable[int]:
    return places if all else sorted(random.Random(7).sample(places, min(most, len(places))))


every = pytest.mark.parametrize("all", [False, pytest.param(True, marks=pytest.mark.nightly)])


@every
async def test_wal_is_cut(folder: Path, all: bool) -> None:
    """However the end of the WAL is cut: all is there, or the coordinator does not start."""
    copy = await in_wal(folder)
    whole = len(copy.wal)
    seen: Counter[str] = Counter()
    for length in some(range(whole - LAST_FRAMES * FRAME, whole + 1), all=all):
        cut = replace(copy, wal=copy.wal[:length])
        seen[outcome(folder, cut, joined(BATCHES), refusal=length < whole)] += 1

    assert all == ("kept" in seen)
    assert len(seen) > 1


@every
async def test_wal_is_damaged(folder: Path, all: bool) -> None:
    """Whichever byte of the last commits is wrong, no acknowledged batch is left out silently."""
    copy = await in_wal(folder)
    whole = len(copy.wal)
    for place in some(range(whole - LAST_FRAMES * FRAME, whole), all=all):
        bad = replace(copy, wal=flipped(copy.wal, place, 1 << place % 8))
        outcome(folder, bad, joined(BATCHES), refusal=True)


async def test_wal_is_gone(folder: Path) -> None:
    """A WAL that was deleted, emptied or exchanged is noticed, and the line names a way out."""
    copy = await in_wal(folder)
    other = await in_wal(folder / "other")
    head = folder / f"{NAME}-head"
    text = outcome(folder, replace(copy, wal=other.wal), refusal=True)
    assert "belongs to another journal" in text
    for wal in (b"", copy.wal[:16]):
        text = outcome(folder, replace(copy, wal=wal), refusal=True)
        assert f"its end is missing (it has 0 of {len(BATCHES)} batches)" in text
        assert head.name in text

    head.unlink()
    assert [] == load(folder / NAME), "the operator decides"


@every
async def test_page_is_damaged(folder: Path, all: bool) -> None:
    """A wrong byte of the main file does no harm, or the coordinator does not start."""
    copy, records = await in_file(folder)
    seen: Counter[str] = Counter()
    places = range(len(copy.db))
    for place in some(places, all=False, most=PAGE_SAMPLE if all else SAMPLE):
        bad = replace(copy, db=flipped(copy.db, place))
        seen[outcome(folder, bad, records, refusal=True)] += 1

    assert seen["kept"] < seen.total()


async def test_file_is_cut(folder: Path) -> None:
    """A file that lacks pages at its end is refused, also one that is empty or gone."""
    copy, records = await in_file(folder)
    for length in range(0, len(copy.db), PAGE // 2):
        outcome(folder, replace(copy, db=copy.db[:length]), records, refusal=True)
    assert "kept" == outcome(folder, copy, records, refusal=False)


@every
async def test_witness_is_damaged(folder: Path, all: bool) -> None:
    """A wrong byte in the witness, or one that is cut, never hides a batch or adds one."""
    copy = await in_wal(folder)
    seen: Counter[str] = Counter()
    for place in some(range(len(copy.head)), all=all):
        for head in (flipped(copy.head, place), copy.head[:place]):
            bad = replace(copy, head=head)
            seen[outcome(folder, bad, joined(BATCHES), refusal=True)] += 1
    both = replace(copy, head=flipped(flipped(copy.head, 20), 532))

    assert seen["kept"] > 0
    assert "delete this file" in outcome(folder, both, refusal=True)


async def test_witness_of_another_journal(folder: Path) -> None:
    """A witness that another journal left is not believed, nor is it overwritten."""
    copy = await in_wal(folder)
    other = await in_wal(folder / "other")
    mixed = replace(copy, head=other.head)

    assert "belongs to another journal" in outcome(folder, mixed, refusal=True)
    assert other.head == copy_of(folder / NAME).head


async def test_old_file_under_a_new_witness(folder: Path) -> None:
    """A backup that lacks the latest batches is refused while the witness knows of them."""
    journal = SqliteJournal.open(folder / NAME)
    await journal.load()
    await journal.append(small(1), 1)
    await journal.close()
    backup = copy_of(journal.path)
    journal = SqliteJournal.open(folder / NAME)
    await journal.load()
    await journal.append(small(2), 2)
    await journal.close()
    restored = replace(backup, head=copy_of(journal.path).head)

    assert "1 of 2 batches" in outcome(folder, restored, refusal=True)
    assert "kept" == outcome(folder, backup, small(1), refusal=False)
