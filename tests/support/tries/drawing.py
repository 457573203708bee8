"""Which of the tests that take long a command runs: each commit draws other ones.

A quarter runs with `make test`, half is marked `long`, and a quarter `nightly`. What would run
last, with nothing beside it, is long or nightly. Tests that are named one by one run as they are
marked.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from support.tries.commit import draw

FOLDERS = ("tests/e2e/", "tests/docs/test_commands.py")
"""A test below these that has a folder for its files starts processes."""
LONG_TABLES = (
    "tests/unit/elastic/test_functions.py",
    "tests/unit/server/fleet/test_ownership_faults.py",
    "tests/unit/server/contract/test_boundaries.py",
    "tests/unit/wire/test_loading.py",
)
"""Unit tests that together take as long as thousands of others."""
SHARES = ("", "long", "long", "nightly")
"""The marks of these tests; each has one of so many parts of them."""
TIERS = frozenset({"long", "nightly", "records"})


def draw_mark(nodeid: str, commit: str | None = None) -> str:
    """Return the mark of a test at a commit: this one, unless it is given. `make test` has ""."""
    return SHARES[draw(f"test {nodeid}", len(SHARES), commit)]


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Drawing:
    """Marks the tests that are not drawn, before any is chosen by its marks."""

    last: tuple[str, ...]
    """Beginnings of the ids of the tests that run last."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if any("::" in one for one in config.args):
            return
        for item in items:
            if TIERS & {mark.name for mark in item.iter_markers()}:
                continue
            starts = item.nodeid.startswith(FOLDERS) and "tmp_path" in _fixtures_of(item)
            is_in_part = starts or item.nodeid.startswith(LONG_TABLES)
            mark = draw_mark(item.nodeid) if is_in_part else ""
            if item.nodeid.startswith(self.last):
                mark = mark or "long"
            if mark:
                item.add_marker(getattr(pytest.mark, mark))


def _fixtures_of(item: pytest.Item) -> list[str]:
    """Return the names of all fixtures of a test: what starts processes has a folder for them."""
    return item.fixturenames if isinstance(item, pytest.Function) else []
