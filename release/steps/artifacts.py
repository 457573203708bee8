"""The files of a release: wheel, sdist, SBOM and checksums.

Everything is built from what git has of the commit, so a file that was forgotten is missing here
and not only at the user's. It is built twice, in folders with other names and other permissions:
the bytes have to be the same. The sdist has to build the same wheel.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from steps.commands import NotReleased, run, run_module
from steps.tree import Release

SUMS = "SHA256SUMS"
STRICT_UMASK = 0o077
"""For the second build. The first one has that of the user."""


@dataclass(frozen=True)
class Built:
    """What is uploaded."""

    wheel: Path
    sdist: Path


def build_twice(repository: Path, release: Release, folder: Path, dist: Path) -> Built:
    """Build wheel and sdist into `dist`, twice, and the wheel from the sdist once more.

    Raises:
        NotReleased: a build failed, or two of them differ.
    """
    first = _build(_export(repository, release, folder / "first"), release, dist)
    with _umask(STRICT_UMASK):
        source = _export(repository, release, folder / "a second one")
        second = _build(source, release, folder / "dist-second")
        unpacked = folder / "unpacked"
        with tarfile.open(first.sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (inside,) = unpacked.iterdir()
        from_sdist = _build(inside, release, folder / "dist-sdist", targets=("wheel",))
    for path, other, how in (
        (first.wheel, second.wheel, "a second build"),
        (first.sdist, second.sdist, "a second build"),
        (first.wheel, from_sdist.wheel, "a build from the sdist"),
    ):
        if path.read_bytes() != other.read_bytes():
            raise NotReleased(f"{how} gives another {path.name}: something is not reproducible")
    return first


def check(built: Built, repository: Path) -> None:
    """Check both as a package index would, and the contents of the wheel.

    Raises:
        NotReleased: a tool found something.
    """
    files = (str(built.wheel), str(built.sdist))
    run_module("twine", "check", "--strict", *files, folder=repository)
    run_module("check_wheel_contents", str(built.wheel), folder=repository)


def write_sbom(python: Path, repository: Path, release: Release, dist: Path) -> Path:
    """Write what the package needs, as it was installed for the trial, in CycloneDX JSON.

    Args:
        python: interpreter of an environment that has the wheel, its dependencies, and no more.
        repository: the checkout, for the metadata of the main component.
        release: the release, whose date it gets.
        dist: the folder that it is written to.

    Raises:
        NotReleased: it could not be made, or is not valid.
    """
    path = dist / f"rallypoint-{release.version}.cdx.json"
    options = ["--pyproject", "pyproject.toml", "--mc-type", "application"]
    options += ["--output-reproducible", "--validate", "--output-file", str(path)]
    run_module(
        *("cyclonedx_py", "environment", *options, str(python)),
        folder=repository,
        extra=release.epoch,
    )
    return path


def write_sums(dist: Path) -> None:
    """Write a checksum of every file, as `sha256sum --check` reads them."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(dist.iterdir())
    ]
    (dist / SUMS).write_text("".join(lines), encoding="utf-8")


def _export(repository: Path, release: Release, folder: Path) -> Path:
    """Return a folder with what git has of the commit."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", release.commit],
        cwd=repository,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def _build(
    source: Path, release: Release, dist: Path, targets: tuple[str, ...] = ("wheel", "sdist")
) -> Built:
    """Build without a network: the back end is hatchling itself."""
    words = [sys.executable, "-m", "hatchling", "build", "--directory", str(dist)]
    for target in targets:
        run([*words, "--target", target], source, release.epoch)
    name = f"rallypoint-{release.version}"
    return Built(dist / f"{name}-py3-none-any.whl", dist / f"{name}.tar.gz")


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
