"""What came of the cases with torch's API, written down once, so that no test has to run it again.

A record belongs to one version of torch and to one digest of the case: of its module and of what
all cases share. With another of either it is stale.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.elastic.program import api, outcome
from support.elastic.program import case as case_module
from support.elastic.program.case import Case
from support.elastic.runs import PROGRAM
from support.torchrun.records import torch_version

FOLDER = Path(__file__).parents[2] / "e2e" / "elastic" / "cases" / "torch_records"
AGAIN = "make record-elastic"
"""The command that renews stale records."""


def record_file(case: Case) -> Path:
    """Return where the record of a case is, for this torch."""
    return FOLDER / torch_version() / f"{case.name}.json"


def digest(case: Case) -> str:
    """Return what changes when torch has to be asked again."""
    module = inspect.getsourcefile(case.run)
    assert module is not None
    shared = (
        api.__file__,
        case_module.__file__,
        outcome.__file__,
        *sorted(map(str, PROGRAM.glob("scripts/*"))),
    )
    found = hashlib.sha256()
    for path in map(Path, (module, *shared)):
        if path.is_file():
            found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def find_staleness(case: Case) -> str:
    """Return why the record of a case cannot be used, or nothing."""
    path = record_file(case)
    if not path.exists():
        return f"{case.name} was never recorded with torch {torch_version()}: {AGAIN}"
    if json.loads(path.read_text())["case"] != digest(case):
        return f"{case.name} has changed since torch was recorded: {AGAIN}"
    return ""


def find_unused(cases: Iterable[Case]) -> list[Path]:
    """Return what belongs to none of the cases, or to another torch."""
    used = {record_file(case) for case in cases}
    return sorted(path for path in FOLDER.rglob("*.json") if path not in used)


def load(case: Case) -> list[Any]:
    """Return what came of a case, for each node; fails when there is no fresh record."""
    stale = find_staleness(case)
    assert not stale, stale
    found: list[Any] = json.loads(record_file(case).read_text())["nodes"]
    return found


def save(case: Case, nodes: list[Any]) -> None:
    """Write down what came of a case where `load` finds it."""
    path = record_file(case)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"torch": torch_version(), "case": digest(case), "nodes": nodes}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
