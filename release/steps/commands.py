"""Programs that a release runs, and the one error that stops it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

LIMIT_S = 600
"""For one program: installing the dependencies takes longest, and a mirror may be slow."""
SHOWN_CHARS = 2_000
"""How much of the output of a failed program is shown, from its end."""


class NotReleased(Exception):
    """A check failed. The text says which, and what to do."""


def run(words: list[str], folder: Path, extra: Mapping[str, str] | None = None) -> str:
    """Run a program in a folder; return its standard output.

    Args:
        words: the program and its arguments.
        folder: its working directory.
        extra: variables besides ours.

    Raises:
        NotReleased: it failed, or took longer than `LIMIT_S`.
    """
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **(extra or {})},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise NotReleased(f"{words[0]} is missing: run this by make release") from error
    except subprocess.TimeoutExpired as error:
        raise NotReleased(f"{_name(words)} took longer than {LIMIT_S} s") from error
    if done.returncode:
        output = (done.stdout + done.stderr).strip()[-SHOWN_CHARS:]
        raise NotReleased(f"{_name(words)} failed with {done.returncode}:\n{output}")
    return done.stdout


def run_module(name: str, *words: str, folder: Path, extra: Mapping[str, str] | None = None) -> str:
    """Run a module with this interpreter; see `run`."""
    return run([sys.executable, "-m", name, *words], folder, extra)


def _name(words: list[str]) -> str:
    return " ".join(words[2:4] if words[1:2] == ["-m"] else words[:2])
