"""What must be true of a commit that is released.

The version is in `pyproject.toml` and nowhere else: the program asks for the metadata of what is
installed. The changelog has a section for it, and the contract is frozen as it is, so the next
release is compared with this one.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from steps.commands import NotReleased, run

VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
FROZEN = Path("proto") / "v1.binpb"
STAMP = Path(".nightly") / "stamp.json"
"""What `make nightly` leaves: the commit that it ran at, and whether everything passed."""


@dataclass(frozen=True)
class Release:
    """A commit that can be released."""

    version: str
    commit: str
    """Its full hash."""
    seconds: int
    """When it was committed, since 1970 in UTC: the date of everything that is built from it."""

    @property
    def epoch(self) -> dict[str, str]:
        """Return the variable that tells build tools this date."""
        return {"SOURCE_DATE_EPOCH": str(self.seconds)}


def check(repository: Path) -> Release:
    """Return the release that the checked-out commit would be.

    Raises:
        NotReleased: it cannot be released as it is.
    """
    if run(["git", "status", "--porcelain"], repository).strip():
        raise NotReleased("the tree has changes: commit them first (git status)")
    version = read_version(repository)
    commit = run(["git", "rev-parse", "HEAD"], repository).strip()
    check_tag(repository, version, commit)
    check_changelog((repository / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    check_frozen(repository)
    seconds = int(run(["git", "log", "-1", "--format=%ct"], repository))
    return Release(version, commit, seconds)


def read_version(repository: Path) -> str:
    """Return the version of `pyproject.toml`.

    Raises:
        NotReleased: no release can have it.
    """
    text = (repository / "pyproject.toml").read_text(encoding="utf-8")
    version = str(tomllib.loads(text)["project"]["version"])
    if not VERSION.fullmatch(version):
        raise NotReleased(f"version {version!r} of pyproject.toml: use 1.2.3, 1.2.3a1 or 1.2.3rc1")
    return version


def check_tag(repository: Path, version: str, commit: str) -> None:
    """Refuse a version that another commit has been released as.

    Raises:
        NotReleased: the tag is there, at another commit.
    """
    tag = f"v{version}"
    if not run(["git", "tag", "--list", tag], repository).strip():
        return
    if run(["git", "rev-parse", f"{tag}^{{commit}}"], repository).strip() != commit:
        raise NotReleased(f"{tag} is another commit: raise the version in pyproject.toml")


def check_changelog(text: str, version: str) -> None:
    """Refuse a changelog without a section of this version, or with entries that it leaves out.

    Raises:
        NotReleased: the section is missing, without a date or empty, or others are unreleased.
    """
    heading = re.compile(rf"## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}")
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("## "):
            lines = sections.setdefault(line, [])
        elif line.startswith("- "):
            lines.append(line)
    found = [entries for title, entries in sections.items() if heading.fullmatch(title)]
    if not found or not found[0]:
        raise NotReleased(f"CHANGELOG.md has no entries under '## [{version}] - YYYY-MM-DD'")
    if sections.get("## [Unreleased]"):
        raise NotReleased(f"CHANGELOG.md has unreleased entries: move them to [{version}]")


def check_frozen(repository: Path) -> None:
    """Refuse a contract that is not frozen as it is.

    Raises:
        NotReleased: `make proto-freeze` would change the frozen contract.
    """
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        fresh = Path(folder) / FROZEN.name
        buf = str(Path(sys.executable).with_name("buf"))
        run([buf, "build", "proto", "--exclude-source-info", "-o", str(fresh)], repository)
        if fresh.read_bytes() != (repository / FROZEN).read_bytes():
            raise NotReleased(f"{FROZEN} is not this contract: run make proto-freeze and commit it")


def check_nightly(repository: Path, commit: str) -> None:
    """Refuse a commit at which `make nightly` has not passed.

    Raises:
        NotReleased: it has not run to its end at this commit, or something has failed.
    """
    path = repository / STAMP
    stamp = json.loads(path.read_text()) if path.exists() else {}
    if stamp.get("commit") != commit:
        raise NotReleased("make nightly has not run at this commit: run it first")
    if not stamp["is_green"]:
        raise NotReleased(f"make nightly has not passed at this commit: {STAMP} has its steps")
