"""How the tests are spread over processes that run side by side (pytest-xdist)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ORDER = ("sim", "e2e", "docs", "unit")
"""Folders: what takes longest begins first, and the small change fills up the end."""
TOGETHER = ("tests/unit/", "tests/e2e/launching/test_examples.py")
"""Files that stay whole: their tests take milliseconds, or share what is made once a module."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.relative_to(HERE).parts[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Hand out tests one by one, but for the files that stay whole.

    It is what `--dist loadgroup` is for, which does nothing with pytest 9.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # the order is that of the collection
    scheduling: object = LoadScopeScheduling(config, log)
    vars(scheduling)["_split_scope"] = _find_scope
    return scheduling


def _find_scope(nodeid: str) -> str:
    """Return what a test is handed out with: its file, or itself alone."""
    return nodeid.partition("::")[0] if nodeid.startswith(TOGETHER) else nodeid
