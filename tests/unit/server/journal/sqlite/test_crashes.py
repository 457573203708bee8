"""A crash at every write: what was acknowledged is there, the batch in between whole or absent.

SQLite writes the WAL from front to end, then perhaps copies pages into the file, and the witness
comes last. So the files before and after an operation give every state in between. A crash alone
never makes the start refused.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.sqlite import file, pages
from rallypoint.server.journal.sqlite.journal import SqliteJournal
from support.journal import crashing
from support.journal.damage import (
    NAME,
    PAGE,
    SECTOR,
    Copy,
    copy_of,
    fast_folder,
    load,
    mixed,
    outcome,
    torn,
)
from support.journal.stores import joined, large, small

MIB = 1_048_576
LIMIT_S = 20
FRAME = 24 + PAGE
DRAWN = 6
"""States of each kind that are drawn at random for each operation."""

Records = Sequence[JournalRecord]


class Step(Struct, frozen=True):
    """An operation: the files and the records before and after it."""

    before: Copy
    after: Copy
    old: Records
    new: Records


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as folder:
        yield folder


@pytest.fixture
def small_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let SQLite copy pages into the file, and begin the WAL again, after a few batches."""
    monkeypatch.setattr(file, "WAL_PAGES", 12)
    monkeypatch.setattr(pages, "FREE_PAGES", 4)
    monkeypatch.setattr(pages, "DROP_ROWS", 3)


async def steps(folder: Path, count: int) -> AsyncIterator[Step]:
    """Append small and large batches, and compact now and then."""
    journal = SqliteJournal.open(folder / NAME)
    await journal.load()
    before = await still_copy(journal)
    old: list[JournalRecord] = []
    for number in range(1, count + 1):
        if number % 9 == 0:
            new = old[-5:]
            await journal.compact(tuple(new), number)
            journal = await settled(journal)
        else:
            batch = large(number, 5 * PAGE) if number % 5 == 0 else small(number)
            new = [*old, *batch]
            await journal.append(batch, number)
        after = await still_copy(journal)
        yield Step(before, after, old, new)
        before, old = after, new
    await journal.close()


async def still_copy(journal: SqliteJournal) -> Copy:
    """Copy the files while nothing is written."""
    return await journal._writer.run(lambda: copy_of(journal.path))


async def settled(journal: SqliteJournal) -> SqliteJournal:
    """Wait for the end of a compaction, and until nothing is left to tidy."""
    await journal.close()
    journal = SqliteJournal.open(journal.path)
    await journal.load()
    connection, meta = journal._files.connection, journal._files.meta

    def tidy() -> bool:
        return pages.drop_some(connection, meta) or pages.shrink_some(connection)

    while await journal._writer.run(tidy):
        pass
    return journal


def in_the_wal(step: Step, drawn: random.Random) -> Iterator[Copy]:
    """Yield the files when the process dies while it writes the WAL."""
    before, after = step.before.wal, step.after.wal
    ends = range(0, len(after), FRAME)
    places = {*(32 + end for end in ends), *drawn.choices(range(len(after) + 1), k=DRAWN)}
    places.add(len(after))
    for place in sorted(places):
        yield replace(step.before, wal=mixed(before, after, place))


def without_sync(step: Step, drawn: random.Random) -> Iterator[Copy]:
    """Yield the files when power is cut before the WAL is synced."""
    sectors = -(-len(step.after.wal) // SECTOR)
    for _ in range(DRAWN):
        kept = [drawn.random() < 0.5 for _ in range(sectors)]
        yield replace(step.before, wal=torn(step.before.wal, step.after.wal, kept, SECTOR))


def at_a_checkpoint(step: Step, drawn: random.Random) -> Iterator[Copy]:
    """Yield the files when the process dies while pages are copied, or before the witness."""
    done = replace(step.after, head=step.before.head)
    yield done
    if step.before.db != step.after.db and len(step.after.db) >= len(step.before.db):
        for _ in range(DRAWN):
            kept = [drawn.random() < 0.5 for _ in range(-(-len(step.after.db) // PAGE))]
            yield replace(done, db=torn(step.before.db, step.after.db, kept, PAGE))


def at_the_witness(step: Step, drawn: random.Random) -> Iterator[Copy]:
    """Yield the files when the process dies while it writes the witness."""
    for place in drawn.choices(range(len(step.after.head) + 1), k=DRAWN):
        yield replace(step.after, head=mixed(step.before.head, step.after.head, place))


def is_append(step: Step) -> bool:
    return list(step.new[: len(step.old)]) == list(step.old)


@pytest.mark.parametrize("count", [12, pytest.param(120, marks=pytest.mark.long)])
@pytest.mark.usefixtures("small_wal")
async def test_crash_in_an_append(folder: Path, count: int) -> None:
    """Wherever a process dies in an append, its batch is there as a whole or not at all."""
    drawn = random.Random(count)
    trial = folder / "trial"
    trial.mkdir()
    async for step in steps(folder, count):
        if not is_append(step):
            continue
        for copy in (*in_the_wal(step, drawn), *without_sync(step, drawn)):
            outcome(trial, copy, step.old, step.new, refusal=False)
        for copy in (*at_a_checkpoint(step, drawn), *at_the_witness(step, drawn)):
            outcome(trial, copy, step.new, refusal=False)


@pytest.mark.usefixtures("small_wal")
async def test_crash_in_a_compaction(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the snapshot counts the old records are loaded, then the new; never a mixture."""
    journal = SqliteJournal.open(folder / NAME)
    await journal.load()
    batches = [small(number) for number in range(1, 20)]
    for number, batch in enumerate(batches):
        await journal.append(batch, number)
    old, new = joined(batches), [*small(100), *large(101, MIB), *large(102, MIB), *small(103)]
    copies = [copy_of(journal.path)]
    tidy = copy_after_each_write(monkeypatch, journal.path, copies)
    await journal.compact(new, 50)
    assert await asyncio.to_thread(tidy.wait, LIMIT_S)
    await journal.close()
    copies.append(copy_of(journal.path))
    monkeypatch.undo()

    trial = folder / "trial"
    trial.mkdir()
    counts = []
    for copy in copies:
        counts.append(len(load(copy.put(trial))))
        outcome(trial, copy, old if counts[-1] == len(old) else new, refusal=False)
    assert sorted(counts, reverse=True) == counts, "once the snapshot counts, it always does"
    assert counts.count(len(old)) > 4
    assert counts.count(len(new)) > 4
    assert len(copies[-1].db) < 3 * MIB


def copy_after_each_write(
    monkeypatch: pytest.MonkeyPatch, path: Path, copies: list[Copy]
) -> threading.Event:
    """Copy the files after each transaction of a compaction; return what is set at the end."""
    tidy = threading.Event()

    def watch(name: str) -> None:
        real = getattr(pages, name)

        def call(*args: object) -> object:
            result = real(*args)
            copies.append(copy_of(path))
            if name == "shrink_some" and not result:
                tidy.set()
            return result

        monkeypatch.setattr(pages, name, call)

    for name in ("drop_unnamed", "add_part", "name_snapshot", "drop_some", "shrink_some"):
        watch(name)
    return tidy


async def test_crash_when_a_journal_is_made(folder: Path) -> None:
    """A journal that was never written to can always be opened, however little of it is there."""
    journal = SqliteJournal.open(folder / NAME)
    opened = copy_of(journal.path)
    await journal.close()
    closed = copy_of(journal.path)
    trial = folder / "trial"
    trial.mkdir()
    assert opened.wal and opened.head and not closed.wal

    for place in range(0, len(opened.wal) + 1, 64):
        outcome(trial, Copy(opened.db, opened.wal[:place]), (), refusal=False)
    for head in (b"", b"\0" * 2 * SECTOR, opened.head[:100], opened.head[:SECTOR], opened.head):
        outcome(trial, replace(opened, head=head), (), refusal=False)
        outcome(trial, replace(closed, head=head), (), refusal=False)
    outcome(trial, Copy(), (), refusal=False)


@pytest.mark.parametrize("kills", [6, pytest.param(150, marks=pytest.mark.long)])
async def test_killed_at_any_moment(folder: Path, kills: int) -> None:
    """After each SIGKILL of the writer, every batch that it acknowledged is there, in order."""
    # From Python 3.12 on a fork beside the threads of the journal warns.
    quietly = ("-W", "ignore::DeprecationWarning")
    program = [sys.executable, *quietly, crashing.__file__, str(folder / NAME), str(kills)]
    process = await asyncio.create_subprocess_exec(*program, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()

    assert (0, "") == (process.returncode, err.decode())
    facts = json.loads(out)
    assert kills == facts["kills"]
    assert facts["acknowledged"] >= kills // 3 * 2
