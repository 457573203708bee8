"""Main programs that are odd in some way: warm and cold agree, or the difference is documented."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.oddities.case import Case, find_fault
from support.oddities.cases import (
    ends,
    flags,
    imports,
    objects,
    places,
    processes,
    starts,
    state,
    streams,
)
from support.oddities.driver import Driver

TABLES = (state, starts, imports, flags, ends, objects, processes, streams, places)
CASES = tuple(case for table in TABLES for case in table.CASES)


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_warm_and_cold_agree(driver: Driver, case: Case, tmp_path: Path) -> None:
    """Or they differ as docs/warm.md says."""
    cold, warm = driver.compare(case, tmp_path)

    assert find_fault(case, cold, warm) == ""
