"""What one oddity of a main program is: files, how it is started, and what is expected of it."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import unified_diff
from textwrap import dedent
from typing import Any

STOCK = ("logging", "json", "dataclasses", "multiprocessing")
"""Modules that forkservers import unless a case names others."""
HERE = "{here}"
"""Stands for the folder of the case in paths, variables and arguments."""


@dataclass(frozen=True)
class Difference:
    """How forked and cold workers differ, and where docs/preload.md says so."""

    documented: str
    """Words of docs/preload.md, in "What differs from a cold worker"."""
    cold: str
    """A pattern that what the cold worker has printed matches, and the forked one's does not."""
    forked: str
    """The same for the forked worker."""


@dataclass(frozen=True)
class Case:
    """A program that runs twice: in a fresh interpreter, and in a fork of a forkserver."""

    name: str
    text: str
    """Of train.py."""
    files: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """Other files; None: a folder. A name that begins with "->" is a link to the text."""
    later: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """Files that are written once the forkserver is ready; None: deleted."""
    script: str = "{here}/train.py"
    args: tuple[str, ...] = ()
    args_before: tuple[str, ...] | None = None
    """Those that the forkserver is started with; None: the same."""
    is_module: bool = False
    run_path: bool = False
    flags: tuple[str, ...] = ()
    """Of the interpreter, after -u."""
    python: str = ""
    """The interpreter, if it is not the one of the tests."""
    env: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = STOCK
    calls: tuple[str, ...] = ()
    cwd: str = HERE
    cpus: tuple[int, ...] = ()
    """To which the worker is bound; empty: to none."""
    stdin: str = "null"
    """null, pipe, file, terminal; pipe and file hold the line "asked"."""
    out: str = "pipe"
    """pipe, file, null or terminal."""
    exit: int = 0
    """Exit code, or the negative number of the signal."""
    says: str = ""
    """A pattern that the output of the cold worker contains: the case shows what it claims."""
    refused: str = ""
    """Why the worker must not be forked; empty: it must."""
    differs: Difference | None = None


def own(name: str, text: str, module: str, **facts: Any) -> Case:
    """Return a case whose forkserver imports own.py."""
    return Case(name, text, {"own.py": module}, preload=("own",), **facts)


@dataclass(frozen=True)
class Outcome:
    """What a run of a case has shown."""

    exit: int
    out: str
    err: str

    def text(self) -> str:
        """Return all output."""
        return self.out + self.err


def zipped(**files: str) -> bytes:
    """Return a zip archive with these files, whose names end with .py."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.py"), text)
    return data.getvalue()


def script_of(case: Case) -> str:
    """Return the text of train.py."""
    return dedent(case.text).lstrip("\n")


def normalise(text: str) -> str:
    """Cut out what no two processes have in common: addresses, numbers of threads."""
    return re.sub("0x[0-9a-f]{6,}|started [0-9]+", "…", text)


def compute_diff(cold: Outcome, forked: Outcome) -> str:
    """Return the lines that only one of them has printed; empty: they are the same."""
    one, other = (
        [f"exit {outcome.exit}", *outcome.out.splitlines(), *outcome.err.splitlines()]
        for outcome in (cold, forked)
    )
    if cold == forked:
        return ""
    return "\n".join(unified_diff(one, other, "cold", "forked", n=0, lineterm=""))


def find_fault(case: Case, cold: Outcome, forked: Outcome) -> str:
    """Return what is wrong with two outcomes, for people; empty: they are as they should be."""
    if cold.exit != case.exit:
        return f"the cold worker ended with {cold.exit}, not {case.exit}"
    if case.says and not re.search(case.says, cold.text()):
        return f"the cold worker has not printed {case.says!r}"
    if case.differs is None:
        return compute_diff(cold, forked)
    if cold.exit != forked.exit:
        return "forked and cold end in different ways"
    for pattern, one, other in (
        (case.differs.cold, cold, forked),
        (case.differs.forked, forked, cold),
    ):
        if not re.search(pattern, one.text()):
            return f"{pattern!r} was not printed"
        if re.search(pattern, other.text()):
            return f"{pattern!r} was printed by both"
    return ""
