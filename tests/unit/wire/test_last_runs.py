"""The files in which coordinators leave their last runs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rallypoint.base.user_folders import find_host_name
from rallypoint.wire.last_runs import FILES_MAX, LeftJob, choose_name, read, write


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "rallypoint" / "last-runs"


def job(text: str) -> LeftJob:
    return LeftJob(text.encode(), b"", b"", b"")


def read_jobs(port: int) -> list[bytes]:
    return [one.job for left in read(port, find_host_name().__eq__) for one in left.jobs]


def test_coordinator_replaces_its_own_file_and_no_other(folder: Path) -> None:
    """The latest is read first; only the user can read them."""
    first, second = f"{find_host_name()}-29400-1.msgpack", choose_name(29400)
    write(first, (job("a"),))
    write(second, (job("b"),))
    write(second, (job("c"),))
    write(choose_name(29401), (job("d"),))

    assert read_jobs(29400) == [b"c", b"a"]
    assert read_jobs(29402) == []
    assert read(29400, lambda host: host == "other") == []
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_oldest_files_go(folder: Path) -> None:
    """However many coordinators there were."""
    for number in range(FILES_MAX + 3):
        name = f"host-1-{number}.msgpack"
        write(name, ())
        os.utime(folder / name, (number, number))
    write("host-1-99.msgpack", ())

    assert len(list(folder.iterdir())) == FILES_MAX
    assert not (folder / "host-1-0.msgpack").exists()


def test_file_that_was_not_written_here_is_left_out(folder: Path, tmp_path: Path) -> None:
    """Damaged, a link, or one that others can write."""
    write(choose_name(29400), (job("a"),))
    for number, content in enumerate((b"", b"\x00", b"\xff" * 64)):
        (folder / f"{find_host_name()}-29400-{number}.msgpack").write_bytes(content)
    (folder / f"{find_host_name()}-29400-7.msgpack").symlink_to(next(folder.iterdir()))
    writable = folder / f"{find_host_name()}-29400-8.msgpack"
    writable.write_bytes(next(folder.glob("*-29400-1*.msgpack")).read_bytes())
    writable.chmod(0o666)

    assert read_jobs(29400) == [b"a"]


def test_folder_that_cannot_be_written_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one among the temporary files; the error names the first if there is none at all."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write(choose_name(29400), (job("a"),))
    assert read_jobs(29400) == [b"a"]
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")

    with pytest.raises(OSError, match="/proc/nowhere"):
        write(choose_name(29400), (job("a"),))
