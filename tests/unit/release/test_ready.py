"""What `make release` refuses, before it builds anything."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT = REPOSITORY / "release" / "make_release.py"
BUF = Path(sys.executable).with_name("buf")
LIMIT_S = 60
CONTRACT = 'syntax = "proto3";\n\npackage a;\n\nmessage A {\n  bool b = 1;\n}\n'
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-23\n\n- First.\n"


def git(repository: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *identity, *words], cwd=repository, check=True, capture_output=True)


def commit(repository: Path) -> None:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "A change")
    write_stamp(repository, is_green=True)


def write_stamp(repository: Path, *, is_green: bool) -> None:
    """Leave what `make nightly` leaves at the commit that is checked out."""
    folder = repository / ".nightly"
    folder.mkdir(exist_ok=True)
    command = ["git", "rev-parse", "HEAD"]
    head = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True)
    stamp = {"commit": head.stdout.strip(), "is_green": is_green, "steps": []}
    (folder / "stamp.json").write_text(json.dumps(stamp))


def freeze(repository: Path) -> None:
    words = [str(BUF), "build", "proto", "--exclude-source-info", "-o", "proto/v1.binpb"]
    subprocess.run(words, cwd=repository, check=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A commit that can be released."""
    (tmp_path / "proto").mkdir()
    (tmp_path / "proto" / "a.proto").write_text(CONTRACT)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "a"\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / ".gitignore").write_text("/.nightly/\n")
    git(tmp_path, "init", "--quiet")
    freeze(tmp_path)
    commit(tmp_path)
    return tmp_path


def ready(repository: Path) -> tuple[int, str]:
    """Return the exit code and the line about it."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "ready", "--repository", str(repository)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_commit_that_is_ready(repository: Path) -> None:
    """The line names version and commit. The tag of this commit may be there already."""
    git(repository, "tag", "v1.2.3")

    code, text = ready(repository)

    assert code == 0, text
    assert re.fullmatch(r"release: rallypoint 1\.2\.3 can be released from [0-9a-f]{12}\n", text)


def leave_changes(repository: Path) -> None:
    (repository / "notes.txt").write_text("not in git")


def leave_tag(repository: Path) -> None:
    git(repository, "tag", "v1.2.3")
    (repository / "more.txt").write_text("one more commit")
    commit(repository)


def leave_failed_night(repository: Path) -> None:
    write_stamp(repository, is_green=False)


def leave_old_night(repository: Path) -> None:
    stamp = repository / ".nightly" / "stamp.json"
    text = stamp.read_text()
    (repository / "more.txt").write_text("one more commit")
    commit(repository)
    stamp.write_text(text)


def leave_no_night(repository: Path) -> None:
    (repository / ".nightly" / "stamp.json").unlink()


def change(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Return what changes a file and commits it."""

    def act(repository: Path) -> None:
        path = repository / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        commit(repository)

    return act


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (leave_changes, "the tree has changes: commit them first (git status)"),
        (leave_tag, "v1.2.3 is another commit: raise the version in pyproject.toml"),
        (
            change("pyproject.toml", "1.2.3", "1.2.3.dev1"),
            "version '1.2.3.dev1' of pyproject.toml: use 1.2.3, 1.2.3a1 or 1.2.3rc1",
        ),
        (
            change("pyproject.toml", "1.2.3", "1.2.4"),
            "CHANGELOG.md has no entries under '## [1.2.4] - YYYY-MM-DD'",
        ),
        (
            change("CHANGELOG.md", " - 2026-11-23", ""),
            "CHANGELOG.md has no entries under '## [1.2.3] - YYYY-MM-DD'",
        ),
        (
            change("CHANGELOG.md", "- First.", ""),
            "CHANGELOG.md has no entries under '## [1.2.3] - YYYY-MM-DD'",
        ),
        (
            change("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n- Second.\n"),
            "CHANGELOG.md has unreleased entries: move them to [1.2.3]",
        ),
        (
            change("proto/a.proto", "bool b = 1;", "bool b = 1;\n  bool c = 2;"),
            "proto/v1.binpb is not this contract: run make proto-freeze and commit it",
        ),
        (leave_no_night, "make nightly has not run at this commit: run it first"),
        (leave_old_night, "make nightly has not run at this commit: run it first"),
        (
            leave_failed_night,
            "make nightly has not passed at this commit: .nightly/stamp.json has its steps",
        ),
    ],
    ids=[
        *("changed tree", "tag", "version", "no section", "no date", "no entries"),
        *("unreleased", "contract", "no night", "old night", "failed night"),
    ],
)
def test_commit_that_is_not_ready(
    repository: Path, spoil: Callable[[Path], None], line: str
) -> None:
    """One line says what is missing, and what to do."""
    spoil(repository)

    assert (1, f"release: error: {line}\n") == ready(repository)
