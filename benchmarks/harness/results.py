"""The raw results of a benchmark in one JSON file: what was measured, where, how, every sample.

Tables and the chart are drawn from these files alone (see `page.py`). A cell is one row and column
of one table, with all of its samples. The file is written again after every turn, whole or not at
all, so a benchmark that is cut off leaves the turns that it completed.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.installed import REPOSITORY, describe_installation

FOLDER = REPOSITORY / "benchmarks" / "results"
"""Where results are kept."""


@dataclass(slots=True)
class Cell:
    """What was measured for one place of a table.

    table, row, column: the place.
    unit: of the samples; empty for a count.
    samples: all of them, in the order of time.
    missing: runs in which nothing happened within the limit.
    """

    table: str
    row: str
    column: str
    unit: str
    samples: list[float] = field(default_factory=list)
    missing: int = 0


@dataclass(slots=True)
class Origin:
    """Where and how something was measured.

    commit: of the checkout; is_changed: whether it differed, the results aside.
    processors: how many this process may use.
    installed: how the package is: `wheel` or `editable`.
    load_before, load_after: average number of running tasks in the minute before, in all of them.
    """

    command: str
    date: str
    commit: str
    is_changed: bool
    processor: str
    processors: int
    kernel: str
    python: str
    torch: str
    rallypoint: str
    installed: str
    load_before: float
    load_after: float


class Results:
    """Everything that one benchmark measures."""

    def __init__(self, path: Path | None = None) -> None:
        """Note the machine and its load; write to `path`, or nowhere."""
        self._path = path
        self.cells: list[Cell] = []
        self.cases: list[dict[str, Any]] = []
        """Everything that a benchmark that judges has done, in the order of time."""
        self.wrong: Sequence[str] = ()
        """What it has found wrong."""
        self.origin = Origin(
            command=shlex.join(["python", *_without_path(sys.argv)]),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=_git("rev-parse", "HEAD"),
            is_changed=bool(_git("status", "--porcelain", "--", ".", ":!benchmarks/results")),
            load_before=_read_load(),
            load_after=_read_load(),
            **describe_machine(),
        )

    def add(self, table: str, row: str, column: str, unit: str, *samples: float) -> None:
        """Add samples to a cell, with six digits."""
        rounded = [float(f"{sample:.6g}") for sample in samples]
        self._cell(table, row, column, unit).samples += rounded

    def count(self, table: str, row: str, column: str, times: int = 1) -> None:
        """Add to a cell that has one number."""
        cell = self._cell(table, row, column, "")
        cell.samples = [sum(cell.samples) + times]

    def miss(self, table: str, row: str, column: str, unit: str) -> None:
        """Note that something did not happen within the limit."""
        self._cell(table, row, column, unit).missing += 1

    def samples(self, table: str, row: str, column: str) -> list[float]:
        """Return the samples of a cell; none if it was not measured."""
        place = (table, row, column)
        for cell in self.cells:
            if (cell.table, cell.row, cell.column) == place:
                return cell.samples
        return []

    def _cell(self, table: str, row: str, column: str, unit: str) -> Cell:
        for cell in self.cells:
            if (cell.table, cell.row, cell.column) == (table, row, column):
                return cell
        self.cells.append(Cell(table, row, column, unit))
        return self.cells[-1]

    def write(self) -> None:
        """Write what is known so far; call it after every turn."""
        self.origin.load_after = _read_load()
        if self._path is None:
            return
        beside = self._path.with_suffix(".part")
        beside.write_text(self._render(), encoding="utf-8")
        beside.replace(self._path)

    def _render(self) -> str:
        """Return JSON with a line for each cell, so that a change shows which cells differ."""

        def lines(found: Sequence[dict[str, Any]]) -> str:
            return ",\n".join(f"    {json.dumps(one, ensure_ascii=False)}" for one in found)

        origin = json.dumps(asdict(self.origin), indent=4, ensure_ascii=False)
        parts = [f'  "origin": {origin[:-1]}  }}']
        parts.append(f'  "cells": [\n{lines([*map(asdict, self.cells)])}\n  ]')
        if self.cases:
            parts.append(f'  "cases": [\n{lines(self.cases)}\n  ]')
        if self.wrong:
            parts.append(f'  "wrong": {json.dumps(self.wrong, ensure_ascii=False)}')
        return "{\n" + ",\n".join(parts) + "\n}\n"


def read_results(path: Path) -> Results:
    """Return what a benchmark has written.

    Raises:
        OSError, ValueError, TypeError: the file is missing, or not one of them.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    results = Results.__new__(Results)
    results._path = path
    results.origin = Origin(**found["origin"])
    results.cells = [Cell(**cell) for cell in found["cells"]]
    results.cases, results.wrong = found.get("cases", []), found.get("wrong", ())
    return results


def describe_machine() -> dict[str, Any]:
    """Return what is measured, and on which machine: names of `Origin` with their values."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "rallypoint": metadata.version("rallypoint"),
        "installed": describe_installation(),
    }


def _without_path(argv: Sequence[str]) -> list[str]:
    """Return a command line without the file of the results, which differs for every reader."""
    words = list(argv)
    if "--json" in words:
        at = words.index("--json")
        del words[at : at + 2]
    return words


def _read_load() -> float:
    return round(os.getloadavg()[0], 2)


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
