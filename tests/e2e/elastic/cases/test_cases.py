"""One program of function entry points through torch's Python API and through ours.

Each case runs with ours and is compared with what torch was recorded to do; the long tests run
torch itself. Only the import differs. Differences on purpose are in `differences.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.elastic.cases.differences import DIFFERENCES
from support.docs.pages import REPOSITORY
from support.elastic import records
from support.elastic.compare import find_differences
from support.elastic.program import api
from support.elastic.program.case import CASES, Case
from support.elastic.runs import run_case
from support.processes.world import World

NAMES = list(CASES)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.long if case.is_long else (), id=name)
        for name, case in CASES.items()
    ],
)
def test_same_as_with_torch(case: Case, world: World, tmp_path: Path) -> None:
    """Every value that a program can see is the same, but for the differences that are listed."""
    expected = records.load(case)
    ours = run_case(case, api.RALLYPOINT, tmp_path / world.job_id, world.target)
    found = find_differences(expected, ours)
    listed = [one for one in DIFFERENCES if case.name in one.cases]

    assert [one for one in found if not any(listing.covers(one) for listing in listed)] == []
    assert [one for one in listed if not any(map(one.covers, found))] == [], "not so any more"


@pytest.mark.long
@pytest.mark.parametrize("case", CASES.values(), ids=NAMES)
def test_torch_does_what_was_recorded(case: Case, tmp_path: Path) -> None:
    """torch itself does what its record shows."""
    expected = records.load(case)

    assert run_case(case, api.TORCH, tmp_path / "recorded-run", "localhost:1") == expected


def test_every_record_is_fresh() -> None:
    """Each case was recorded as it is now, with the torch that is installed; no other was."""
    stale = [why for case in CASES.values() if (why := records.find_staleness(case))]

    assert stale == [], f"run {records.AGAIN}"
    assert records.find_unused(CASES.values()) == []


def test_every_difference_belongs_to_a_case() -> None:
    """No name in the table is misspelt."""
    assert [name for one in DIFFERENCES for name in one.cases if name not in CASES] == []


def test_every_reason_is_documented() -> None:
    """Users find each of them in docs/python.md."""
    page = (REPOSITORY / "docs" / "python.md").read_text()

    assert [one.why for one in DIFFERENCES if one.why not in page] == []
