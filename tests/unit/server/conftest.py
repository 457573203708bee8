"""A real etcd for the modules that ask for one; tests of a module share it, each under a prefix."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from support.etcd.clients import Connect, connecting
from support.etcd.cluster import Cluster, running


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One member."""
    with running(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def etcd_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three members; `heal` them after a fault."""
    with running(tmp_path_factory.mktemp("etcd"), 3) as cluster:
        yield cluster


@pytest.fixture
def prefix() -> str:
    """The prefix of one test."""
    return f"/test-{secrets.token_hex(4)}"


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Make clients, which the test does not have to close."""
    async with connecting() as connect:
        yield connect
