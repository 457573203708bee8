"""`rallypoint journal`: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rallypoint.cli.commands.journal.command import main
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.core.reads.replay import JournalRecord
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
