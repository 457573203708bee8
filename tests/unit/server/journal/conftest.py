"""Every store that keeps the contract of a journal."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.etcd.cluster import Cluster
from support.journal.stores import EtcdStore, SqliteStore, Store

STORES: dict[str, Callable[[Path, Callable[[], Cluster]], Store]] = {
    "sqlite": lambda folder, etcd: SqliteStore(folder),
    "etcd": lambda folder, etcd: EtcdStore(etcd()),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return STORES[request.param](tmp_path, lambda: request.getfixturevalue("etcd"))
