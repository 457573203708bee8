"""Reads the journal of a coordinator that runs, and fills a new one."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.journal.archive import places
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.codec.batches import decode_batch
from rallypoint.server.journal.interface import (
    JournalFailed,
    JournalInUse,
    JournalUnreadable,
)
from rallypoint.server.journal.open import describe_journal, open_journal
from rallypoint.server.journal.sqlite.journal import SqliteJournal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "journal.sqlite"


@pytest.fixture
async def journal(path: Path) -> AsyncIterator[SqliteJournal]:
    """An open journal with three batches, at 10, 20 and 30 ms."""
    journal = SqliteJournal.open(path)
    await journal.load()
    for number in (1, 2, 3):
        await journal.append([EpochRaised(number)], 10 * number)
    yield journal
    await journal.close()


def epochs_of(contents: Contents) -> list[int]:
    (payloads,) = contents.journals
    records = [record for one in payloads for record in decode_batch(one).records]
    return [record.epoch for record in records if isinstance(record, EpochRaised)]


async def test_journal_is_read_beside_its_coordinator(journal: SqliteJournal, path: Path) -> None:
    """Everything that was appended, with identity and secret; the coordinator continues."""
    contents = places.read(f"sqlite:{path}")
    await journal.append([EpochRaised(4)], 40)

    assert epochs_of(contents) == [1, 2, 3]
    assert (contents.identity, contents.secret) == (journal.identity, journal.secret)
    assert epochs_of(places.read(f"sqlite:{path}")) == [1, 2, 3, 4]


async def test_reading_changes_nothing(journal: SqliteJournal, path: Path) -> None:
    """Not even the file of a coordinator that has ended."""
    await journal.close()
    before = {one.name: one.read_bytes() for one in path.parent.iterdir()}

    places.read(f"sqlite:{path}")
    after = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.stat().st_size}
    names = {name for name in after if not name.endswith("-shm")}
    assert {name: before[name] for name in names} == {name: after[name] for name in names}


async def test_snapshot_is_read(journal: SqliteJournal, path: Path) -> None:
    """And the batches after it, in order."""
    await journal.compact([EpochRaised(30)], 30)
    await journal.append([EpochRaised(31)], 40)
    await journal.close()

    assert epochs_of(places.read(f"sqlite:{path}")) == [30, 31]


async def test_filled_journal_is_the_same(journal: SqliteJournal, path: Path) -> None:
    """A coordinator loads the same records, times, identity and secret, and appends to them."""
    contents = places.read(f"sqlite:{path}")
    other = path.parent / "other" / "deep" / "journal.sqlite"

    places.fill(f"sqlite:{other}", contents)
    assert places.read(f"sqlite:{other}") == contents
    again = SqliteJournal.open(other)
    loaded = await again.load()
    await again.append([EpochRaised(4)], 40)
    await again.close()
    last = decode_batch(contents.journals[0][-1])
    assert list(loaded.records) == [EpochRaised(1), EpochRaised(2), EpochRaised(3)]
    assert (loaded.now_ms, loaded.unix_ms) == (30, last.unix_ms)
    assert (again.identity, again.secret) == (journal.identity, journal.secret)
    assert epochs_of(places.read(f"sqlite:{other}")) == [1, 2, 3, 4]
    assert [one.name for one in other.parent.iterdir() if "import" in one.name] == []
    assert other.stat().st_mode & 0o777 == 0o600
    assert other.parent.stat().st_mode & 0o777 == 0o700


async def test_journal_in_use_is_not_filled(journal: SqliteJournal, path: Path) -> None:
    """Its coordinator has the lock."""
    contents = places.read(f"sqlite:{path}")

    with pytest.raises(JournalInUse, match=str(os.getpid())):
        places.fill(f"sqlite:{path}", contents)


async def test_journal_that_exists_is_not_filled(journal: SqliteJournal, path: Path) -> None:
    """It stays as it was."""
    contents = places.read(f"sqlite:{path}")
    await journal.append([EpochRaised(4)], 40)
    await journal.close()

    with pytest.raises(JournalFailed, match="there is a journal already; import into a new file"):
        places.fill(f"sqlite:{path}", contents)
    assert epochs_of(places.read(f"sqlite:{path}")) == [1, 2, 3, 4]


async def test_import_that_was_killed_leaves_no_journal(
    journal: SqliteJournal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it had written; the next import succeeds."""
    contents = places.read(f"sqlite:{path}")
    other = path.with_name("other.sqlite")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", die)
        places.fill(f"sqlite:{other}", contents)
    with pytest.raises(JournalFailed, match="it is empty"):
        places.read(f"sqlite:{other}")
    places.fill(f"sqlite:{other}", contents)
    assert places.read(f"sqlite:{other}") == contents


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("memory", "'memory' is not sqlite:PATH or etcd://HOST:PORT/PREFIX"),
        ("sqlite:", "'sqlite:' is not sqlite:PATH"),
        ("/a/b", "'/a/b' is not sqlite:PATH"),
        ("etcd://h", "'etcd://h' has no prefix"),
        ("sqlite:/no/such/file", "/no/such/file: there is no such file"),
    ],
)
def test_place_without_a_journal_is_one_line(state: str, message: str) -> None:
    """That says what is expected."""
    with pytest.raises(JournalFailed, match=f"^{message}.*$"):
        places.read(state)


def test_another_file_is_refused(tmp_path: Path) -> None:
    """A text, a database of another program, and a folder."""
    (tmp_path / "text").write_text("hello " * 1_000)
    connection = sqlite3.connect(tmp_path / "database")
    connection.execute("CREATE TABLE meta (key, value)")
    connection.close()
    for name in ("text", "database"):
        with pytest.raises(JournalUnreadable, match="is not a journal of Rallypoint"):
            places.read(f"sqlite:{tmp_path / name}")
    with pytest.raises(JournalFailed, match="it is a folder, not a file"):
        places.read(f"sqlite:{tmp_path}")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(JournalFailed, match="it is not a file"):
        places.read(f"sqlite:{tmp_path / 'pipe'}")
    with pytest.raises(JournalFailed, match="its path is too long"):
        places.read(f"sqlite:{tmp_path / ('x' * 300)}")


async def test_tilde_is_the_home(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves that of `sqlite:~/journal.sqlite` to the command."""
    monkeypatch.setenv("HOME", str(journal.path.parent))

    assert epochs_of(places.read("sqlite:~/journal.sqlite")) == [1, 2, 3]
    other = open_journal("sqlite:~/other.sqlite", 1)
    assert describe_journal(other) == f"sqlite:{journal.path.parent}/other.sqlite"
    await other.close()


async def test_lost_end_is_noticed(journal: SqliteJournal, path: Path) -> None:
    """A batch that was acknowledged and is missing, in a copy of the files."""
    await journal.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DELETE FROM batches WHERE sequence = 3")
    connection.close()

    with pytest.raises(JournalUnreadable):
        places.read(f"sqlite:{path}")


@pytest.mark.parametrize("way", ["backup", "vacuum"])
async def test_copy_that_sqlite_makes_is_a_journal(
    journal: SqliteJournal, path: Path, way: str
) -> None:
    """While the coordinator runs, without any other file: `.backup` and `VACUUM INTO`."""
    copy = path.with_name("copy.sqlite")
    connection = sqlite3.connect(path)
    if way == "vacuum":
        connection.execute("VACUUM INTO ?", (str(copy),))
    else:
        with sqlite3.connect(copy) as other:
            connection.backup(other)
        other.close()
    connection.close()
    await journal.append([EpochRaised(4)], 40)

    again = SqliteJournal.open(copy)
    assert [EpochRaised(1), EpochRaised(2), EpochRaised(3)] == list((await again.load()).records)
    await again.append([EpochRaised(5)], 50)
    await again.close()
    assert epochs_of(places.read(f"sqlite:{copy}")) == [1, 2, 3, 5]
