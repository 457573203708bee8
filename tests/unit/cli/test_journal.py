"""`rallypoint journal`: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from rallypoint.cli.commands.journal.command import main
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.journal.sqlite.journal import SqliteJournal

PROG = "rallypoint journal"


def write(path: Path, *batches: Sequence[JournalRecord]) -> str:
    """Write a journal as a coordinator does; return its state."""

    async def append() -> None:
        journal = SqliteJournal.open(path)
        await journal.load()
        for number, batch in enumerate(batches, 1):
            await journal.append(batch, 1_000 * number)
        await journal.close()

    asyncio.run(append())
    return f"sqlite:{path}"


@pytest.fixture
def state(tmp_path: Path) -> str:
    return write(tmp_path / "journal.sqlite", *([EpochRaised(epoch)] for epoch in (7, 8, 9)))


def test_show_prints_a_record_on_each_line(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Oldest first; with --last only the latest."""
    assert main(PROG, ["show", state]) == 0
    every = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(PROG, ["show", "--last", "2", state]) == 0
    latest = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [one["record"]["epoch"] for one in every] == [7, 8, 9]
    assert latest == every[1:]


def test_verify_prints_what_it_holds(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and values, in lines that are short enough for a terminal."""
    assert main(PROG, ["verify", state]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {name: value for name, value in (line.split(maxsplit=1) for line in lines)}

    assert found["journal"] == state
    assert (found["epoch"], found["batches"], found["jobs"]) == ("9", "3", "0")
    assert found["records"].startswith("3, ")
    assert list(found) == [
        *("journal", "format", "coordinator", "epoch", "batches", "records", "jobs", "from", "to")
    ]


def test_exported_journal_is_imported(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is private, and nothing is printed that is secret."""
    file, other = tmp_path / "backup.jsonl", f"sqlite:{tmp_path / 'other.sqlite'}"
    assert main(PROG, ["export", state, str(file)]) == 0
    assert main(PROG, ["import", str(file), other]) == 0
    text = capsys.readouterr().out
    assert main(PROG, ["export", other, str(tmp_path / "again.jsonl")]) == 0

    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_bytes() == (tmp_path / "again.jsonl").read_bytes()
    assert json.loads(file.read_text().splitlines()[0])["secret"] not in text
    assert text == (
        f"exported 3 batches to {file}, which only its owner can read: it holds the coordinator's "
        f"secret\nimported 3 batches into {other}\n"
    )


def test_journal_that_contradicts_itself_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batches that go back in time: no coordinator writes them."""
    path = tmp_path / "journal.sqlite"
    write(path, [EpochRaised(7)], [EpochRaised(8)])
    state = write(path, [EpochRaised(9)])
    assert main(PROG, ["verify", state]) == 1

    assert capsys.readouterr() == (
        "",
        f"{PROG} verify: error: {state}: batch 3 is from before the one before it; restore the "
        "journal from a backup\n",
    )


@pytest.mark.parametrize("command", ["show", "verify", "export", "import"])
def test_what_cannot_be_read_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, with the name of the file."""
    (tmp_path / "text").write_text("hello\n" * 1_000)
    words = {
        "export": [f"sqlite:{tmp_path / 'text'}", str(tmp_path / "file")],
        "import": [str(tmp_path / "text"), f"sqlite:{tmp_path / 'new'}"],
    }.get(command, [f"sqlite:{tmp_path / 'text'}"])
    code = main(PROG, [command, *words])
    out, error = capsys.readouterr()

    assert (code, out) == (1, "")
    assert error.startswith(f"{PROG} {command}: error: {tmp_path / 'text'}: this is not ")
    assert error.count("\n") == 1
    assert [one.name for one in tmp_path.iterdir()] == ["text"]


def test_export_replaces_no_file(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be the only backup."""
    file = tmp_path / "backup.jsonl"
    file.write_text("precious")
    assert main(PROG, ["export", state, str(file)]) == 1

    assert file.read_text() == "precious"
    line = f"{PROG} export: error: {file}: this file exists already; choose a new one\n"
    assert capsys.readouterr().err == line


def test_one_batch_is_no_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The messages count in English."""
    state = write(tmp_path / "journal.sqlite", [EpochRaised(7)])
    file, other = tmp_path / "backup.jsonl", f"sqlite:{tmp_path / 'other.sqlite'}"
    assert main(PROG, ["export", state, str(file)]) == 0
    assert main(PROG, ["import", str(file), other]) == 0

    out = capsys.readouterr().out
    assert out.startswith("exported 1 batch to ")
    assert out.endswith(f"imported 1 batch into {other}\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space")])
def test_export_that_fails_leaves_no_file(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Not half of one, which looks like a backup."""
    folder = tmp_path / "backups"
    folder.mkdir()
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(os, "fsync", Mock(side_effect=error))
        assert main(PROG, ["export", state, str(folder / "backup.jsonl")]) == 1

    assert list(folder.iterdir()) == []


def test_export_that_is_killed_leaves_no_file(state: str, tmp_path: Path) -> None:
    """Nothing has the name that was asked for; the rest cannot be taken for a backup."""
    folder = tmp_path / "backups"
    folder.mkdir()
    code = (
        "import os, sys\n"
        "from rallypoint.cli.commands.journal.command import main\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), 9)\n"
        f"main({PROG!r}, sys.argv[1:])"
    )
    words = ["export", state, str(folder / "backup.jsonl")]
    done = subprocess.run([sys.executable, "-c", code, *words], timeout=60)

    assert done.returncode == -signal.SIGKILL
    (left,) = folder.iterdir()
    assert left.name.startswith("backup.jsonl.") and left.suffix == ".partial"
    assert left.stat().st_mode & 0o777 == 0o600


def test_export_to_a_file_system_without_hard_links(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a memory stick; no file is replaced there either."""
    file = tmp_path / "backup.jsonl"

    def refuse(source: str, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert main(PROG, ["export", state, str(file)]) == 0
    before = file.read_bytes()
    assert main(PROG, ["export", state, str(file)]) == 1

    assert file.read_bytes() == before
    assert sorted(one.name for one in tmp_path.glob("backup*")) == ["backup.jsonl"]


def test_journal_goes_through_a_pipe(state: str, tmp_path: Path) -> None:
    """With - for the file, from one command into the next."""
    other = f"sqlite:{tmp_path / 'other.sqlite'}"
    command = [sys.executable, "-m", "rallypoint", "journal"]
    out = subprocess.run([*command, "export", state, "-"], capture_output=True, timeout=60)
    done = subprocess.run(
        [*command, "import", "-", other], input=out.stdout, capture_output=True, timeout=60
    )

    assert (out.returncode, out.stderr) == (0, b"")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == f"imported 3 batches into {other}\n".encode()


def test_terminal_does_not_get_the_secret(
    state: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would show it, and keep it in its history."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(PROG, ["export", state, "-"]) == 1

    line = "it holds a secret, and a terminal would show it; name a file"
    assert capsys.readouterr() == ("", f"{PROG} export: error: {line}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "memory"], "STATE: a journal in memory is gone with its coordinator"),
        (["verify", "-"], "STATE: '-' is not sqlite:PATH or etcd://HOST:PORT/PREFIX"),
        (["verify", "a/b"], "STATE: 'a/b' has no kind: write sqlite:a/b"),
        (["-"], "unknown command '-'"),
        (["--nope"], "unknown flag --nope"),
        (["import", "file", "etcd://h/p", "--shards", "0"], "--shards: '0' is not 1 or more"),
    ],
)
def test_bad_usage_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2; the commands take a place and no --state."""
    with pytest.raises(SystemExit) as ended:
        main(PROG, words)

    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"error: {message}" in error and "--state" not in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("shards", "place", "message"),
    [
        ("4", "sqlite:{}/new", "only a journal in etcd has shards; leave --shards out"),
        ("1025", "etcd://127.0.0.1:1/p", "1025 shards are too many: at most 1024"),
    ],
)
def test_number_of_shards_that_cannot_be_is_refused(
    state: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shards: str,
    place: str,
    message: str,
) -> None:
    """Before anything is written."""
    file = tmp_path / "backup.jsonl"
    assert main(PROG, ["export", state, str(file)]) == 0
    words = ["import", str(file), place.format(tmp_path), "--shards", shards]

    assert main(PROG, words) == 1
    assert capsys.readouterr().err.endswith(f"{message}\n")
    assert not (tmp_path / "new").exists()


def test_import_beside_a_coordinator_is_refused(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, as for a second coordinator."""
    file = tmp_path / "backup.jsonl"
    assert main(PROG, ["export", state, str(file)]) == 0
    capsys.readouterr()

    async def import_beside() -> int:
        journal = SqliteJournal.open(tmp_path / "journal.sqlite")
        try:
            return await asyncio.to_thread(main, PROG, ["import", str(file), state])
        finally:
            await journal.close()

    assert asyncio.run(import_beside()) == 2
    assert "another coordinator" in capsys.readouterr().err
