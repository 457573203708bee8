"""`make release` on a clone of this repository: everything but the upload."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
BUF = Path(sys.executable).with_name("buf")
LIMIT_S = 600
TOOLS = ("twine", "check_wheel_contents", "cyclonedx_py")
ENTRY = "## [{version}] - 2026-11-23\n\n"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(2 * LIMIT_S),
    pytest.mark.skipif(
        any(find_spec(name) is None for name in TOOLS),
        reason="the group `release` is not installed: make nightly does it",
    ),
]


def git(repository: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=repository, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone whose latest commit is ready: with a section in the changelog, and frozen."""
    folder = tmp_path_factory.mktemp("release") / "clone"
    git(REPOSITORY, "clone", "--quiet", str(REPOSITORY), str(folder))
    changelog = folder / "CHANGELOG.md"
    text = changelog.read_text()
    version = read_version(folder)
    changelog.write_text(text.replace("## [Unreleased]\n\n", ENTRY.format(version=version), 1))
    words = [str(BUF), "build", "proto", "--exclude-source-info", "-o", "proto/v1.binpb"]
    subprocess.run(words, cwd=folder, check=True)
    git(folder, "commit", "--all", "--quiet", "--message", "A release")
    return folder


def read_version(repository: Path) -> str:
    text = (repository / "pyproject.toml").read_text()
    return str(tomllib.loads(text)["project"]["version"])


def release(repository: Path) -> str:
    done = subprocess.run(
        [sys.executable, "release/make_release.py", "build"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_release_up_to_the_upload(ready: Path) -> None:
    """Four files, the same bytes each time, and what to do next; git is as it was."""
    version = read_version(ready)
    before = git(ready, "rev-parse", "HEAD"), git(ready, "tag")

    printed = release(ready)

    dist = ready / "dist"
    names = [f"rallypoint-{version}{end}" for end in ("-py3-none-any.whl", ".cdx.json", ".tar.gz")]
    assert sorted(path.name for path in dist.iterdir()) == sorted(["SHA256SUMS", *names])
    first = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dist.iterdir()}
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums == {name: first[name] for name in names}
    assert f"nothing has been uploaded. To release {version}:" in printed
    assert f"git tag -a v{version}" in printed
    assert "twine upload dist/" in printed
    assert (git(ready, "rev-parse", "HEAD"), git(ready, "tag")) == before
    assert git(ready, "status", "--porcelain") == ""
    check_sbom(json.loads((dist / names[1]).read_text()), version)

    release(ready)

    again = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dist.iterdir()}
    assert again == first


def check_sbom(bom: dict[str, object], version: str) -> None:
    """The main component is this release; all that it needs is named with a version, and no path
    of this machine is in it.
    """
    text = json.dumps(bom)
    metadata, components = bom["metadata"], bom["components"]
    assert isinstance(metadata, dict) and isinstance(components, list)
    main = metadata["component"]
    needed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    versions = {component["name"].lower(): component["version"] for component in components}

    assert bom["bomFormat"] == "CycloneDX"
    assert (main["name"], main["version"]) == ("rallypoint", version)
    for requirement in needed:
        found = re.match(r"[\w-]+", requirement)
        assert found is not None and versions[found[0].lower()]
    assert all(component.get("purl") for component in components if component is not main)
    assert not {"pip", "setuptools", "pytest", "torch"} & set(versions)
    assert "file:" not in text and str(Path.home()) not in text and "/tmp/" not in text
