"""Runs a benchmark against an installed wheel of this checkout.

A wheel is what a user has: its modules are compiled when it is installed, and they lie in one
folder. An editable install adds a search path for each root; where PYTHONDONTWRITEBYTECODE is set
it also compiles every module at each start. A launch from it takes longer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def clean_environment() -> dict[str, str]:
    """Return this process's environment, in which Python caches bytecode."""
    return {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def install(folder: Path, *others: str) -> Path:
    """Make an environment with a wheel of this checkout; return the folder of its commands.

    Args:
        folder: an empty one, for the wheel and the environment.
        others: what else to install; of what the wheel needs, the pinned versions are installed.

    Raises:
        CalledProcessError: the wheel could not be built or installed.
    """
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run(
        [sys.executable, *pip, "wheel", "--no-deps", "--no-build-isolation"],
        ["--wheel-dir", str(folder), str(REPOSITORY)],
    )
    (wheel,) = folder.glob("rallypoint-*.whl")
    scripts = folder / "venv" / "bin"
    _run([sys.executable, "-m", "venv", str(scripts.parent)])
    constraints = ["--constraint", str(REPOSITORY / "constraints.txt")]
    _run([str(scripts / "python"), *pip, "install", *constraints, str(wheel), *others])
    return scripts


def describe_installation() -> str:
    """Return how the package is installed for this interpreter: `wheel` or `editable`."""
    origin = metadata.distribution("rallypoint").read_text("direct_url.json")
    is_editable = json.loads(origin or "{}").get("dir_info", {}).get("editable", False)
    return "editable" if is_editable else "wheel"


def _run(*parts: Sequence[str]) -> None:
    command = [word for part in parts for word in part]
    # Standard output is for the benchmark's table.
    subprocess.run(command, check=True, env=clean_environment(), stdout=sys.stderr)
