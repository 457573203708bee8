"""Coordinators that share a store in etcd, for each test under another prefix."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from support.etcd.cluster import Cluster, running
from support.etcd.coordinators import Coordinators
from support.processes.world import World


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One member."""
    with running(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three members; `heal` them after a fault."""
    with running(tmp_path_factory.mktemp("etcd"), 3) as cluster:
        yield cluster


@pytest.fixture
def on_one(world: World, etcd: Cluster) -> Iterator[Coordinators]:
    """Coordinators on one member."""
    yield from _coordinators(world, etcd)


@pytest.fixture
def on_three(world: World, trio: Cluster) -> Iterator[Coordinators]:
    """Coordinators on three members, all of which run again at the end."""
    yield from _coordinators(world, trio)
    trio.heal()


def _coordinators(world: World, etcd: Cluster) -> Iterator[Coordinators]:
    made = Coordinators(world, etcd, f"/test-{secrets.token_hex(4)}")
    yield made
    made.close()
