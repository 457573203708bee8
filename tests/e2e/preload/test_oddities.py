"""Main programs that are odd in some way: forked or cold, they end alike, or docs say how not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.oddities import imports, processes, programs
from support.oddities.case import Case, find_fault
from support.oddities.driver import Driver
from support.tries.commit import choose_long, choose_marks

CASES = (*processes.CASES, *programs.CASES, *imports.CASES)
PARTS, LONG = 5, 1
"""One of so many cases runs with `make test`, one more with `make test-long`."""
TORCH_PARTS = 4
"""One of so many cases that import torch runs with `make test-long`."""
DOCUMENT = Path(__file__).parents[3] / "docs" / "preload.md"


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=choose_marks("odd programs", at, PARTS, LONG), id=case.name)
        for at, case in enumerate(CASES)
    ],
)
def test_forked_and_cold_agree(driver: Driver, case: Case, tmp_path: Path) -> None:
    """Or they differ as docs/preload.md says."""
    cold, forked = driver.compare(case, tmp_path)

    assert find_fault(case, cold, forked) == ""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, marks=choose_long("odd programs of torch", at, TORCH_PARTS), id=case.name
        )
        for at, case in enumerate(programs.FRAMEWORKS)
    ],
)
def test_forked_and_cold_agree_with_torch(driver: Driver, case: Case, tmp_path: Path) -> None:
    """Its loaders, spawned processes and pickles need the main program."""
    cold, forked = driver.compare(case, tmp_path)

    assert find_fault(case, cold, forked) == ""


def test_differences_are_documented() -> None:
    """The document says what differs, and no two cases have the same name."""
    _, _, section = DOCUMENT.read_text().partition("## What differs from a cold worker")
    section = " ".join(section.partition("\n## ")[0].split())
    missing = [
        case.differs.documented
        for case in CASES
        if case.differs is not None and case.differs.documented not in section
    ]

    assert missing == []
    assert len({case.name for case in CASES}) == len(CASES)
