"""What a disk or a path can do to a journal: one line each, which says what to do."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rallypoint.server.journal.interface import (
    JournalFailed,
    JournalInUse,
    JournalUnreadable,
)
from rallypoint.server.journal.sqlite import file, pages
from rallypoint.server.journal.sqlite.journal import SqliteJournal
from support.journal.damage import NAME, load
from support.journal.stores import large, small

MIB = 1_048_576


def refusal(path: Path) -> str:
    """Return the text with which a journal is not opened, without its path."""
    with pytest.raises(JournalFailed) as caught:
        SqliteJournal.open(path)
    text = str(caught.value)
    assert "\n" not in text and str(path) in text
    return text.removeprefix(f"{path}")


async def made(path: Path) -> None:
    journal = SqliteJournal.open(path)
    await journal.load()
    await journal.append(small(1), 1)
    await journal.close()


def change_meta(path: Path, key: str, value: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))
    connection.close()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Give a disk of 512 KiB."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def make_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError):
        while filler.write(b"x" * 4096):
            pass


def test_path_that_is_no_file(tmp_path: Path) -> None:
    """A folder, a device, a file among the folders, and a loop of links."""
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")

    assert "it is a folder, not a file" in refusal(tmp_path)
    assert "it is not a file" in refusal(Path("/dev/null"))
    assert "a part of its path is a file" in refusal(tmp_path / "file" / NAME)
    assert "its path is too long" in refusal(tmp_path / ("x" * 300))
    assert "loop of links" in refusal(tmp_path / "loop")
    assert not (tmp_path / "file-lock").exists()


async def test_file_with_two_names(tmp_path: Path) -> None:
    """Two coordinators could open it, each with a lock beside the name that it was given."""
    await made(tmp_path / NAME)
    other = tmp_path / "other.sqlite"
    os.link(tmp_path / NAME, other)

    for path in (other, tmp_path / NAME):
        assert "a second name, a hard link; remove one" in refusal(path)
    other.unlink()
    assert load(tmp_path / NAME)


@pytest.mark.parametrize("kind", ["lock", "head", "wal", "shm"])
async def test_link_beside_a_journal_is_not_followed(tmp_path: Path, kind: str) -> None:
    """Otherwise who can write the folder has the coordinator overwrite any file of its user."""
    path = tmp_path / NAME
    await made(path)
    file.beside(path, kind).unlink(missing_ok=True)
    (tmp_path / "precious").write_text("keep me")
    file.beside(path, kind).symlink_to("precious")
    with pytest.raises(JournalFailed) as caught:
        SqliteJournal.open(path)

    assert f"{path}-{kind} is a link: correct that, or choose another" in str(caught.value)
    assert (tmp_path / "precious").read_text() == "keep me"


@pytest.mark.parametrize("kind", ["", "-lock", "-head"])
async def test_file_that_others_can_write_is_refused(tmp_path: Path, kind: str) -> None:
    """Also one that belongs to another user, where root can give files away."""
    path = tmp_path / NAME
    await made(path)
    part = tmp_path / f"{NAME}{kind}"
    part.chmod(0o666)
    with pytest.raises(JournalFailed, match=f"^everyone can write {part}: correct that, or"):
        SqliteJournal.open(path)
    part.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(part, 12_345, 12_345)
        with pytest.raises(JournalFailed, match=f"^{part} belongs to user 12345: correct that"):
            SqliteJournal.open(path)
        os.chown(part, 0, 0)

    assert load(path) == list(small(1))


async def test_files_that_others_can_read_are_closed_to_them(tmp_path: Path) -> None:
    """A copy, or a volume of a group, can leave them so; the log says that the secret was open."""
    path = tmp_path / NAME
    await made(path)
    path.chmod(0o644)
    file.beside(path, "head").chmod(0o660)
    with capture_logs() as lines:
        assert load(path) == list(small(1))

    modes = {(tmp_path / name).stat().st_mode & 0o777 for name in (NAME, f"{NAME}-head")}
    assert modes == {0o600}
    (line,) = lines
    assert line["event"] == "journal_exposed"
    assert line["files"] == [NAME, f"{NAME}-head"]


async def test_folder_that_others_can_write_is_named(tmp_path: Path) -> None:
    """It is used, because its user has chosen it: a volume of a pod can be such a folder."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with capture_logs() as lines:
        journal = SqliteJournal.open(folder / NAME)
    await journal.close()

    (line,) = lines
    assert line["event"] == "journal_folder_exposed"
    assert line["why"] == f"everyone can write {folder}"


async def test_journal_without_its_lock_file_is_still_in_use(tmp_path: Path) -> None:
    """Who deletes the lock file of a coordinator that runs cannot start a second one beside it."""
    path = tmp_path / NAME
    await made(path)
    journal = SqliteJournal.open(path)
    await journal.load()
    file.beside(path, "lock").unlink()

    for _ in range(2):  # the first attempt makes a new lock file
        with pytest.raises(JournalInUse, match=f"process id {os.getpid()} uses this journal"):
            SqliteJournal.open(path)
    await journal.append(small(1), 2)
    await journal.close()
    assert load(path) == [*small(1), *small(1)]


async def test_second_writer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the database cannot be locked, the one that comes too late says which one to end.

    The journal is whole: to restore a backup would lose what the other one has decided.
    """
    path = tmp_path / NAME
    await made(path)
    monkeypatch.setattr(file, "lock_database", lambda path: os.open(path, os.O_RDONLY))
    first = SqliteJournal.open(path)
    await first.load()
    file.beside(path, "lock").unlink()
    second = SqliteJournal.open(path)
    await second.load()
    await second.append(small(1), 2)
    file.beside(path, "lock").write_text("4711")
    with pytest.raises(JournalFailed) as caught:
        await first.append(small(2), 3)
    for one in (first, second):
        await one.close()

    assert str(caught.value) == (
        f"{path}: another coordinator writes it (process id 4711); end one of them"
    )
    assert load(path) == [*small(1), *small(1)]


async def test_file_of_another_program(tmp_path: Path) -> None:
    """Neither a text nor the database of another program is touched."""
    text = tmp_path / "notes.txt"
    text.write_text("remember the milk, and do not overwrite this text " * 40)
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    with connection:
        connection.execute("CREATE TABLE meta (key, value)")
    connection.close()
    before = text.read_bytes(), other.read_bytes()

    for path in (text, other):
        path.chmod(0o644)
        assert refusal(path).startswith(": this is not a journal of Rallypoint; choose another")
        assert path.stat().st_mode & 0o777 == 0o644
    assert before == (text.read_bytes(), other.read_bytes())


async def test_file_from_the_future(tmp_path: Path) -> None:
    """A newer format is refused with both numbers, and nothing is changed."""
    path = tmp_path / NAME
    await made(path)
    change_meta(path, "format", pages.FORMAT + 1)
    text = refusal(path)

    assert f"newer rallypoint (format {pages.FORMAT + 1}; this one reads {pages.FORMAT})" in text
    assert text.endswith("upgrade this coordinator")


async def test_values_that_were_changed(tmp_path: Path) -> None:
    """The identity, the secret and the place of the snapshot are sealed."""
    for key, value in (("secret", b"x" * 32), ("identity", "0" * 32), ("base", 1), ("seal", b"")):
        path = tmp_path / key / NAME
        path.parent.mkdir()
        await made(path)
        change_meta(path, key, value)
        assert "its table `meta` is damaged" in refusal(path)


async def test_batch_of_another_version(tmp_path: Path) -> None:
    """A batch that cannot be read is refused with the path, even if its digest is right."""
    path = tmp_path / NAME
    journal = SqliteJournal.open(path)
    await journal.load()
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        place = "rallypoint.server.journal.sqlite.journal.encode_batch"
        patch.setattr(place, lambda *_: b"what only a newer version understands")
        await journal.append(small(1), 1)
    await journal.close()
    journal = SqliteJournal.open(path)
    with pytest.raises(JournalUnreadable, match=r"^/.*journal\.sqlite: "):
        await journal.load()
    await journal.close()


async def test_disk_is_full(tmp_path: Path) -> None:
    """The batch that has no room is refused, and so is all after it; the others are there."""
    with small_disk(tmp_path / "disk") as disk:
        journal = SqliteJournal.open(disk / NAME)
        await journal.load()
        await journal.append(small(1), 1)
        with pytest.raises(JournalFailed, match="the disk is full; free some space") as caught:
            await journal.append(large(2, MIB), 2)
        with pytest.raises(JournalFailed, match="the disk is full"):
            await journal.append(small(3), 3)
        assert "\n" not in str(caught.value)
        await journal.close()

        assert list(small(1)) == load(disk / NAME)
        fill(disk)
        assert "the disk is full; free some space" in refusal(disk / "new" / NAME)


def test_disk_has_room_for_some_files(tmp_path: Path) -> None:
    """Whichever of its files has no room: a journal of 64 kB is refused with the same line."""
    with small_disk(tmp_path / "disk") as disk:
        (disk / "folder").mkdir()
        fill(disk)
        for pages_free in range(1, 12):
            for left in (disk / "folder").iterdir():
                left.unlink()
            fill(disk)
            filler = disk / "filler"
            os.truncate(filler, filler.stat().st_size - 4096 * pages_free)
            assert "the disk is full; free some space" in refusal(disk / "folder" / NAME)


async def test_disk_is_full_during_a_compaction(tmp_path: Path) -> None:
    """A snapshot that has no room leaves the old records; the next append says why."""
    with small_disk(tmp_path / "disk") as disk:
        journal = SqliteJournal.open(disk / NAME)
        await journal.load()
        await journal.append(small(1), 1)
        await journal.compact(large(2, MIB), 2)
        with pytest.raises(JournalFailed, match="the disk is full"):
            for number in range(3, 1_000):
                await journal.append(small(number), number)
        await journal.close()

        assert list(small(1)) == load(disk / NAME)[: len(small(1))]


async def test_file_may_not_grow(tmp_path: Path) -> None:
    """At a limit for files (ulimit -f) the start and a batch are refused, in words."""
    await made(tmp_path / NAME)
    journal = SqliteJournal.open(tmp_path / NAME)
    await journal.load()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
    try:
        with pytest.raises(JournalFailed, match="the disk failed"):
            await journal.append(large(2, MIB), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await journal.close()

    assert list(small(1)) == load(tmp_path / NAME)


async def test_disk_is_read_only(tmp_path: Path) -> None:
    """A disk that may not be written is refused at the start, with a way out."""
    with small_disk(tmp_path / "disk") as disk:
        await made(disk / NAME)
        make_read_only(disk)

        assert "make the file and its folder writable" in refusal(disk / NAME)
        assert "make the file and its folder writable" in refusal(disk / "new" / NAME)


async def test_locked_by_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that holds SQLite's own lock makes an append fail after a limit, in words."""
    monkeypatch.setattr("rallypoint.server.journal.sqlite.file.BUSY_S", 0.05)
    journal = SqliteJournal.open(tmp_path / NAME)
    await journal.load()
    other = sqlite3.connect(tmp_path / NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalFailed, match="another program has locked it; end that program"):
        await journal.append(small(1), 1)
    other.execute("ROLLBACK")
    other.close()
    await journal.close()


async def test_reader_beside_a_coordinator(tmp_path: Path) -> None:
    """A program that reads the file, as a backup does, disturbs neither batch nor snapshot."""
    path = tmp_path / NAME
    journal = SqliteJournal.open(path)
    await journal.load()
    await journal.append(small(1), 1)
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    reader.execute("BEGIN")
    assert 1 == reader.execute("SELECT count(*) FROM batches").fetchone()[0]
    await journal.append(small(2), 2)
    await journal.compact(small(3), 3)
    await journal.append(small(4), 4)
    assert 1 == reader.execute("SELECT count(*) FROM batches").fetchone()[0]
    reader.close()
    await journal.close()

    assert [*small(3), *small(4)] == load(path)


async def test_files_are_private(tmp_path: Path) -> None:
    """Only the owner reads a journal: it holds a secret, and what workers share."""
    path = tmp_path / "a" / "b" / NAME
    journal = SqliteJournal.open(path)
    await journal.load()
    await journal.append(small(1), 1)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    await journal.close()

    names = {NAME + suffix for suffix in ("", "-wal", "-shm", "-head", "-lock")}
    assert dict.fromkeys(names, 0o600) == modes
    assert [0o700] * 2 == [folder.stat().st_mode & 0o777 for folder in path.parents[:2]]


async def test_commits_are_synced(tmp_path: Path) -> None:
    """SQLite syncs the WAL at each commit: FULL, in WAL mode."""
    journal = SqliteJournal.open(tmp_path / NAME)
    connection = journal._files.connection

    assert [("wal",)] == connection.execute("PRAGMA journal_mode").fetchall()
    assert [(2,)] == connection.execute("PRAGMA synchronous").fetchall()
    await journal.close()


async def test_link_leads_to_one_lock(tmp_path: Path) -> None:
    """A journal under two names is still one: the second coordinator is refused."""
    journal = SqliteJournal.open(tmp_path / NAME)
    (tmp_path / "link").symlink_to(tmp_path / NAME)
    with pytest.raises(JournalFailed, match=f"process id {os.getpid()} uses this journal"):
        SqliteJournal.open(tmp_path / "link")
    await journal.close()


async def test_file_is_deleted_beside_a_coordinator(tmp_path: Path) -> None:
    """SQLite continues in the file without a name; the log says once what the next start loses."""
    path = tmp_path / NAME
    journal = SqliteJournal.open(path)
    await journal.load()
    with capture_logs() as lines:
        await journal.append(small(1), 1)
        assert lines == []
        path.unlink()
        path.write_bytes(b"")
        for number in (2, 3):
            await journal.append(small(number), number)
    await journal.close()

    assert ["journal_gone"] == [line["event"] for line in lines]
    assert str(path) == lines[0]["path"]
