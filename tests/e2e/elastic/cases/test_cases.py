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
from support.elastic.program import api, launchers
from support.elastic.program.case import CASES, Case
from support.elastic.runs import run_case
from support.processes.world import World
from support.tries.commit import choose_long, choose_marks, draw

QUICK = (
    *("nothing_is_returned", "values_of_many_types", "arguments_of_all_kinds"),
    *("value_that_cannot_be_pickled", "exception"),
    *("exception_of_one_rank", "success_at_the_second_attempt", "restarts_used_up"),
    *("exit_with_0", "killed", "launcher_terminated", "values_of_each_method"),
    *("lambda_by_fork", "function_of_the_main_module", "environment_of_workers"),
    *("script", "failing_script", "redirected_output"),
    *("agent_that_succeeds", "two_nodes", "two_roles", "agents_of_two_nodes"),
)
"""One or two cases of each kind that launch something."""
PARTS, OTHER_PARTS = 3, 5
"""One of so many of these runs with `make test`, and one of so many others with `make test-long`.
"""


def case_parameter(at: int, case: Case) -> object:
    """Return the parameter for a case; those that launch nothing run each time."""
    marks: tuple[pytest.MarkDecorator, ...] = (choose_long("cases", at, OTHER_PARTS),)
    if case.name in QUICK:
        marks = choose_marks("quick cases", QUICK.index(case.name), PARTS, PARTS)
    elif case.run.__module__ == launchers.__name__:
        marks = ()
    return pytest.param(case, marks=marks, id=case.name)


@pytest.mark.parametrize("case", [case_parameter(*one) for one in enumerate(CASES.values())])
def test_same_as_with_torch(case: Case, world: World, tmp_path: Path) -> None:
    """Every value that a program can see is the same, but for the differences that are listed."""
    expected = records.load(case)
    ours = run_case(case, api.RALLYPOINT, tmp_path / world.job_id, world.target)
    found = find_differences(expected, ours)
    listed = [one for one in DIFFERENCES if case.name in one.cases]

    assert [one for one in found if not any(listing.covers(one) for listing in listed)] == []
    assert [one for one in listed if not any(map(one.covers, found))] == [], "not so any more"


SAMPLE = draw("records of torch", len(CASES))
"""The record that the long tests check; `make test-records` checks all, which takes half an hour of
a processor. A record is stale with another version of torch, and with another text of its case."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=case.name, marks=pytest.mark.long if at == SAMPLE else pytest.mark.records
        )
        for at, case in enumerate(CASES.values())
    ],
)
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
