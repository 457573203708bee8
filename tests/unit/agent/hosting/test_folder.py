"""The folder of a hosted coordinator: where it is, and what an earlier one has left there."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import time
from pathlib import Path

import pytest

from rallypoint.agent.hosting import folder as folders
from rallypoint.cli.commands.coordinator import HOSTED_LOG


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path


def leave(folder: Path, age_s: float) -> None:
    """Leave the files of a coordinator that touched its journal so long ago."""
    for name in (folders.JOURNAL, f"{folders.JOURNAL}-head", folders.LOG):
        (folder / name).write_text("left")
    then = time.time() - age_s  # noqa: TID251  # as files have it
    os.utime(folder / folders.JOURNAL, (then, then))


def test_folder_is_for_this_user_host_and_port(home: Path) -> None:
    """A home folder may be shared by hosts, and a host by users."""
    made = folders.make_folder(29_400)

    assert made == home / "state/rallypoint" / f"hosted-{socket.gethostname()}-29400"
    assert made.stat().st_mode & 0o777 == 0o700
    assert folders.make_folder(29_400) == made


def test_folder_is_temporary_where_there_is_no_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that cannot be written is normal in a container."""
    (home / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    made = folders.make_folder(7)

    assert made.parent == home / "temporary" / f"rallypoint-{os.getuid()}"
    assert made.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("kind", ["a folder", "a link"])
def test_temporary_folder_of_another_user_is_not_used(home: Path, kind: str) -> None:
    """That user may have made it before."""
    parent = home / "temporary" / f"rallypoint-{os.getuid()}"
    (home / "elsewhere").mkdir(0o700)
    if kind == "a link":
        parent.symlink_to(home / "elsewhere")
    else:
        parent.mkdir()
    os.lchown(parent, 12_345, 12_345)

    with pytest.raises(folders.NoFolder, match="set XDG_STATE_HOME"):
        folders.make_folder(7, is_temporary=True)
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("is_home_usable", [False, True])
def test_folder_that_others_can_move_is_better_than_none(
    home: Path, monkeypatch: pytest.MonkeyPatch, is_home_usable: bool
) -> None:
    """In a pod with a read-only root, every volume may have mode 0777, without the sticky bit."""
    for volume in (home / "state", home / "temporary"):
        volume.mkdir(exist_ok=True)
        volume.chmod(0o777)
    if not is_home_usable:
        monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    made = folders.make_folder(7)

    there = "state/rallypoint" if is_home_usable else f"temporary/rallypoint-{os.getuid()}"
    assert made.parent == home / there
    assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["a link", "a file", "in a folder of all"])
def test_place_that_another_user_may_have_prepared_is_not_used(home: Path, kind: str) -> None:
    """The state folder can be one that all can write: a journal and its secrets lie elsewhere."""
    wanted = home / "state/rallypoint" / f"hosted-{socket.gethostname()}-7"
    wanted.parent.mkdir(parents=True)
    (home / "mine").mkdir()
    if kind == "a link":
        wanted.symlink_to(home / "mine")
    elif kind == "a file":
        wanted.touch()
    else:
        wanted.parent.chmod(0o777)

    assert folders.make_folder(7).parent == home / "temporary" / f"rallypoint-{os.getuid()}"
    assert list((home / "mine").iterdir()) == []


@pytest.mark.parametrize("kind", ["a folder of all", "a link of another user"])
def test_no_other_user_can_move_the_folder(home: Path, kind: str) -> None:
    """A user who can rename a folder above it would get the journal, and its secret."""
    home.chmod(0o755)
    state = home / "state"
    state.mkdir()
    if kind == "a folder of all":
        state.chmod(0o777)
    elif os.geteuid() != 0:
        pytest.skip("only root can give files away")
    else:
        state.chmod(0o1777)
        (home / "mine").mkdir()
        (state / "rallypoint").symlink_to(home / "mine")
        os.lchown(state / "rallypoint", 12_345, 12_345)

    assert folders.make_folder(7).parent == home / "temporary" / f"rallypoint-{os.getuid()}"
    assert not any(home.glob("mine/*"))


def test_own_folder_is_closed_to_others(home: Path) -> None:
    """One that was made with another mode, such as by a tool that copies files."""
    made = folders.make_folder(7)
    made.chmod(0o755)

    assert folders.make_folder(7) == made
    assert made.stat().st_mode & 0o777 == 0o700


def test_no_temporary_folder_is_needed_where_there_is_a_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container everything else may be read-only."""

    def refuse() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)

    assert folders.make_folder(7).parent == home / "state/rallypoint"
    assert not folders.is_in_use(7)
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    with pytest.raises(folders.NoFolder, match="set XDG_STATE_HOME"):
        folders.make_folder(7)


def test_journal_of_another_user_is_not_in_use(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone may put files among the temporary ones, before this user does."""
    leave(folders.make_folder(7, is_temporary=True), 0.0)
    assert folders.is_in_use(7)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)

    assert not folders.is_in_use(7)


def test_no_place_at_all_is_said_in_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all reasons, and the variable that would help."""
    (home / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", str(home / "file"))

    why = r"\(No such file or directory\) or .*/file/.* \(Not a directory\): set XDG_STATE_HOME"
    with pytest.raises(folders.NoFolder, match=why):
        folders.make_folder(7)


@pytest.mark.parametrize(("age_s", "is_dropped"), [(0.0, False), (50.0, False), (70.0, True)])
def test_journal_of_the_past_is_dropped(home: Path, age_s: float, is_dropped: bool) -> None:
    """One that was touched just now belongs to this job: its coordinator was killed."""
    made = folders.make_folder(7)
    leave(made, age_s)

    assert folders.is_in_use(7) is not is_dropped
    assert folders.drop_if_stale(made) is is_dropped
    assert list(made.iterdir()) == [] if is_dropped else len(list(made.iterdir())) == 3


def test_files_of_a_coordinator_that_served_no_one_are_removed(home: Path) -> None:
    """With the folder; a file that is not a coordinator's keeps both."""
    made = folders.make_folder(7)
    leave(made, 0.0)
    folders.remove_unused(made)
    assert not made.exists()

    folders.make_folder(7)
    (made / "mine").touch()
    folders.remove_unused(made)
    assert [one.name for one in made.iterdir()] == ["mine"]


def test_files_of_a_coordinator_that_lives_stay(home: Path) -> None:
    """It holds the lock."""
    made = folders.make_folder(7)
    leave(made, 0.0)
    with (made / folders.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folders.remove_unused(made)
        assert len(list(made.iterdir())) == 4

    folders.remove_unused(made)
    assert not made.exists()


def test_empty_folder_is_not_of_the_past(home: Path) -> None:
    """There is nothing to drop, and nothing in use."""
    made = folders.make_folder(7)

    assert not folders.drop_if_stale(made)
    assert not folders.is_in_use(7)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        ("x" * 20_000 + "\nend", "end"),
        ("  spaced  \n", "spaced"),
    ],
)
def test_last_line_of_a_log(tmp_path: Path, text: str, line: str) -> None:
    """The reason why a coordinator has ended at its start."""
    log = tmp_path / "log"
    log.write_text(text)

    assert folders.read_last_line(log) == line
    assert folders.read_last_line(tmp_path / "missing") == ""


def test_coordinator_removes_the_log_that_the_agent_made() -> None:
    """The command cannot import the agent's name for it."""
    assert HOSTED_LOG == folders.LOG
