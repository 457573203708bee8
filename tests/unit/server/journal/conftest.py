"""Every store that keeps the contract of a journal."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.journal.stores import MemoryStore, SqliteStore, Store

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": SqliteStore,
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return STORES[request.param](tmp_path)
