"""The package as an earlier commit had it, in an environment for itself.

Made from the repository's own history, without a network. Its dependencies are this checkout's.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from msgspec import Struct

REPOSITORY = Path(__file__).resolve().parents[3]
EARLIER = "77077236543aee7f92d3cdd4945ef909a9062082"
"""The commit before version ranges, capabilities and deadlines: its agents say nothing of them."""
LIMIT_S = 250


class Package(Struct, frozen=True):
    """The commands of an installed package."""

    node_agent: str
    coordinator: str


def install_earlier(folder: Path) -> Package:
    """Build and install the earlier package below a folder; skip the test if it is not there."""
    git = ("git", "-C", str(REPOSITORY))
    known = subprocess.run(
        [*git, "cat-file", "-e", f"{EARLIER}^{{commit}}"], capture_output=True, check=False
    )
    if known.returncode:
        pytest.skip(f"commit {EARLIER[:7]} is not in this clone: git fetch --unshallow")
    sources = folder / "sources"
    sources.mkdir()
    archive = folder / "sources.tar"
    _run(*git, "archive", f"--output={archive}", EARLIER)
    _run("tar", "-xf", str(archive), "-C", str(sources))
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    _run(*pip, "--no-index", "--wheel-dir", str(folder), str(sources))
    (wheel,) = folder.glob("rallypoint-*.whl")
    return _install(wheel, folder / "venv")


def _install(wheel: Path, folder: Path) -> Package:
    """Unpack a wheel into a new environment, and write its commands."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # As a path: the .pth files there, among them that of this checkout, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Package(
        write_command(folder, "node-agent", "node_agent"),
        write_command(folder, "coordinator", "coordinator"),
    )


def write_command(folder: Path, name: str, function: str) -> str:
    """Write a command that an environment runs; return its path."""
    path = folder / "bin" / name
    lines = (
        f"#!{folder}/bin/python",
        "import sys",
        f"from rallypoint.cli.main import {function}",
        f"sys.exit({function}())",
    )
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
