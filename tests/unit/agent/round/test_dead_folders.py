"""Folders of dead agents are removed; those of living ones, of others and of unknown ones stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.agent.round import dead_folders
from rallypoint.agent.round.dead_folders import lock_folder, note_logs, remove_dead_folders
from rallypoint.agent.round.own_folder import OwnFolder

LIVES = textwrap.dedent("""
    import sys
    from pathlib import Path
    from rallypoint.agent.round.own_folder import OwnFolder
    own = OwnFolder(lambda: None)
    own.note_logs(Path(sys.argv[1]))
    print(own.socket_path(1, 0), flush=True)
    sys.stdin.read()
""")
"""An agent in small: it makes its folder, and waits."""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # short: the folders hold sockets
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


def start(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start another agent; return it and its folder."""
    logs = temporary / "rallypoint_job_a_x1"
    process = subprocess.Popen(
        [sys.executable, "-c", LIVES, str(logs)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip()).parents[2]


@pytest.fixture
def other(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    process, folder = start(temporary)
    with process:
        yield process, folder
        process.kill()


def leave(temporary: Path, name: str = "rallypoint_x") -> Path:
    """Make the folder of an agent that is dead."""
    folder = temporary / name
    folder.mkdir()
    os.close(lock_folder(folder))
    return folder


def test_folder_of_a_living_agent_stays(
    temporary: Path, other: tuple[subprocess.Popen[str], Path]
) -> None:
    """Until it dies, by whatever signal."""
    process, folder = other
    (folder / "1" / "0" / "server").touch()
    assert remove_dead_folders(temporary) == []
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert remove_dead_folders(temporary) == [str(folder)]
    assert os.listdir(temporary) == []
    assert remove_dead_folders(temporary) == []


def test_own_folder_stays(temporary: Path) -> None:
    """An agent does not remove its own folder before it ends."""
    own = OwnFolder(lambda: None)
    own.path()

    assert remove_dead_folders(temporary) == []
    own.remove()
    assert os.listdir(temporary) == []


def test_logs_with_files_stay(temporary: Path) -> None:
    """Of the temporary logs of a dead agent, the empty folders are removed."""
    logs = temporary / "rallypoint_job_a_x1"
    for rank in "01":
        (logs / "attempt_0" / rank).mkdir(parents=True)
    (logs / "attempt_0" / "1" / "stderr.log").write_text("why")
    note_logs(leave(temporary), logs)
    remove_dead_folders(temporary)

    assert [str(path.relative_to(temporary)) for path in sorted(temporary.rglob("*"))] == [
        "rallypoint_job_a_x1",
        "rallypoint_job_a_x1/attempt_0",
        "rallypoint_job_a_x1/attempt_0/1",
        "rallypoint_job_a_x1/attempt_0/1/stderr.log",
    ]


@pytest.mark.parametrize("logs", ["kept", "../rallypoint_elsewhere", "rallypoint_a/../kept", "\0"])
def test_no_other_folder_is_taken_for_logs(temporary: Path, logs: str) -> None:
    """Only a temporary folder with our prefix is emptied."""
    kept = temporary / "kept" / "empty"
    kept.mkdir(parents=True)
    note_logs(leave(temporary), Path(f"{temporary}/{logs}"))

    assert len(remove_dead_folders(temporary)) == 1
    assert kept.exists()


def test_folder_without_proof_stays(temporary: Path) -> None:
    """No lock, a lock that is not in place yet, another boot, another kind of file."""
    (temporary / "rallypoint_1").mkdir()
    starting = temporary / "rallypoint_2"
    starting.mkdir()
    (starting / "agent.lock.new").write_bytes(dead_folders._boot_id())
    (leave(temporary, "rallypoint_3") / "agent.lock").write_text("another boot")
    link = temporary / "rallypoint_4"
    link.mkdir()
    (link / "agent.lock").symlink_to(leave(temporary, "elsewhere") / "agent.lock")
    fifo = temporary / "rallypoint_5"
    fifo.mkdir()
    os.mkfifo(fifo / "agent.lock")
    (temporary / "rallypoint_6").symlink_to(temporary / "elsewhere")
    (temporary / "rallypoint_7").touch()
    before = sorted(os.listdir(temporary))

    assert remove_dead_folders(temporary) == []
    assert sorted(os.listdir(temporary)) == before


def test_folder_of_another_user_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if its agent is dead, and we may remove it."""
    leave(temporary)
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)

    assert remove_dead_folders(temporary) == []


def test_removals_are_limited(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next agent continues."""
    monkeypatch.setattr(dead_folders, "REMOVED_MAX", 2)
    for number in range(3):
        leave(temporary, f"rallypoint_{number}")

    assert [len(remove_dead_folders(temporary)) for _ in range(3)] == [2, 1, 0]


def test_folder_is_made_where_locks_do_not_work(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a folder works, and only its agent removes it."""

    def refuse(fd: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    own = OwnFolder(lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", refuse)
        folder = own.path()

    assert remove_dead_folders(temporary) == []
    assert folder.exists()
    own.remove()
