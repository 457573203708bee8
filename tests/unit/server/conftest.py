"""A real etcd for the modules that ask for one, with a prefix for each test; and the log."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from rallypoint.base.log import merge_context
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


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """Return the events that are logged, as they come, with their contexts."""
    with capture_logs(processors=[merge_context]) as lines:
        yield lines
