"""The record of runs of the tests: what ran, for how long, and which test needed a second try.

It is a file of JSON lines, `.test-runs.jsonl` in the checkout, or where `TEST_RUNS` says: a machine
that makes a new clone for each run keeps it elsewhere.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from support.tries.commit import find_commit

RUNS = 20
"""How long a second try is remembered, in runs."""
FAILED_MAX = 20
_KEPT = 200
_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Trial:
    """A test that failed and ran again."""

    test: str
    alone: bool
    """Whether it passed with nothing beside it."""
    loaded: bool
    """Whether it passed beside busy processes."""
    traceback: str
    """How it failed the first time."""


@dataclass(frozen=True)
class Run:
    """A run of the tests."""

    date: str
    commit: str
    arguments: tuple[str, ...]
    status: int
    """pytest's exit code, after the second try."""
    seconds: float
    load: float
    """Processes that wanted a processor, on average of a minute."""
    trial: Trial | None = None
    failed: tuple[str, ...] = ()
    """The first tests that failed, `FAILED_MAX` at most."""

    @classmethod
    def now(
        cls,
        arguments: Sequence[str],
        status: int,
        seconds: float,
        load: float,
        trial: Trial | None,
        failed: Sequence[str] = (),
    ) -> Run:
        """Return a run that has just ended."""
        date = time.strftime("%Y-%m-%d %H:%M:%S")
        rounded = round(seconds, 1), round(load, 2)
        first = tuple(failed[:FAILED_MAX])
        return cls(date, find_commit(), tuple(arguments), status, *rounded, trial, first)


def record_path() -> Path:
    """Return the file of the record."""
    return Path(os.environ.get("TEST_RUNS") or _ROOT / ".test-runs.jsonl")


def read_runs(path: Path) -> list[Run]:
    """Return the runs of a record, the latest last; none if there is no file."""
    if not path.exists():
        return []
    runs = []
    for line in path.read_text().splitlines():
        values = json.loads(line)
        trial = values.pop("trial")
        values["arguments"] = tuple(values["arguments"])
        values["failed"] = tuple(values["failed"])
        runs.append(Run(**values, trial=Trial(**trial) if trial else None))
    return runs


def write_run(path: Path, run: Run) -> None:
    """Add a run to a record, and drop what is old."""
    lines = path.read_text().splitlines() if path.exists() else []
    lines = [*lines, json.dumps(asdict(run))][-_KEPT:]
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text("\n".join(lines) + "\n")
    fresh.replace(path)
