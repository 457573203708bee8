"""A relay in front of several coordinators that share a store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from support.etcd.cluster import Cluster, running
from support.etcd.coordinators import Coordinators, until_job
from support.processes.jobs import is_started, pids
from support.processes.world import World
from support.relays.running import is_back, start_relay


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
def owners(world: World, etcd: Cluster) -> Iterator[Coordinators]:
    """Two coordinators, each of which serves half of the jobs."""
    made = Coordinators(world, etcd, f"/test-{secrets.token_hex(4)}")
    made.start_many(2)
    yield made
    made.close()


def test_relay_goes_to_the_owner(world: World, owners: Coordinators) -> None:
    """Agents know the relay alone, and it knows one coordinator; the owner may be the other one.

    When the owner dies, the relay finds the next one, and no worker notices.
    """
    owner, (other,) = owners.owner(), owners.others()
    _, world.target = start_relay(world, f"{other.address},{owner.address}")
    agents = [world.agent(name, nnodes="2", nproc=2) for name in ("a", "b")]
    workers = world.mailbox.workers(4)
    before = until_job(other, world.job_id, lambda job: is_started(job, 1))
    owner.command.kill()
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    after = until_job(other, world.job_id, is_back)

    assert before.round.header == after.round.header
    assert pids(before) == pids(after)
    for worker in workers:
        worker.tell("exit", "0")
    assert [0, 0] == [agent.wait() for agent in agents]
