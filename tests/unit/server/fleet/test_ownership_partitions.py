"""Owners and members of etcd on separate hosts, of which some cannot reach others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from support.etcd.clients import Connect
from support.etcd.cluster import Cluster, Member, running
from support.etcd.owner_processes import Processes, check_journals, check_never_two_are_sure
from support.etcd.owners import SHARDS
from support.machines.netns import Network, NotPermitted
from support.processes.commands import Command
from support.tries.commit import choose_long

pytestmark = pytest.mark.long
MEMBERS = ("m0", "m1", "m2")
DIRECTIONS = ("both", "up", "down")


@dataclass
class World:
    """Three members and the owners a and b, each on its host; each owner has half the shards."""

    network: Network
    cluster: Cluster
    owners: Processes
    first: Command
    second: Command

    def split(self, *groups: tuple[str, ...]) -> None:
        """Cut every host off from those of the other groups."""
        for one, other in product(groups, groups):
            if one != other:
                for source, target in product(one, other):
                    self.network.cut(source, target)

    def leader(self) -> Member:
        return self.cluster.find_leader()


@pytest.fixture
def world(tmp_path: Path, prefix: str) -> Iterator[World]:
    try:
        network = Network(*MEMBERS, "a", "b")
    except NotPermitted as error:
        pytest.skip(str(error))
    with network:
        hosts = [network.hosts[name] for name in MEMBERS]
        with running(tmp_path / "etcd", 3, hosts=hosts) as cluster:
            owners = Processes(cluster, prefix, tmp_path)
            first = owners.start("a", network.hosts["a"])
            try:
                first.wait_stdout(f"owns {SHARDS}")
                second = owners.start("b", network.hosts["b"])
                for one in (first, second):
                    one.wait_stdout(f"owns {SHARDS // 2}")
                yield World(network, cluster, owners, first, second)
            finally:
                for command in owners.all.values():
                    command.kill()
                    command.drain()


async def finish(world: World, connect: Connect, prefix: str) -> None:
    """Heal the network; both share again, and what must be true of all that they did is true."""
    world.network.heal()
    await asyncio.to_thread(world.first.wait_stdout, f"owns {SHARDS // 2}", 2)
    done = await asyncio.to_thread(world.owners.end)
    check_never_two_are_sure(done)
    await check_journals(connect(world.cluster, prefix), prefix, done)


async def test_owner_beside_a_leader_that_is_cut_off(
    world: World, connect: Connect, prefix: str
) -> None:
    """That leader still renews leases for a while; the owner does not count on it."""
    leader = world.leader().name
    others = tuple(name for name in MEMBERS if name != leader)
    world.split((leader, "a"), (*others, "b"))
    await asyncio.to_thread(world.second.wait_stdout, f"owns {SHARDS}")

    assert "owns 0" in world.first.stdout().splitlines()
    await finish(world, connect, prefix)


@pytest.mark.parametrize(
    "direction",
    [
        pytest.param(one, marks=choose_long("partitions", at, 3))
        for at, one in enumerate(DIRECTIONS)
    ],
)
async def test_owner_that_is_cut_off(
    world: World, connect: Connect, prefix: str, direction: str
) -> None:
    """From all members: in one direction its questions still arrive, in the other the answers."""
    for member in MEMBERS:
        if direction != "down":
            world.network.cut("a", member)
        if direction != "up":
            world.network.cut(member, "a")
    # Renewals that arrive count for etcd, though no answer does: the owner gives up all the same.
    await asyncio.to_thread(world.first.wait_stdout, "owns 0")
    await asyncio.to_thread(world.second.wait_stdout, f"owns {SHARDS}")
    await finish(world, connect, prefix)


async def test_owner_that_reaches_only_a_follower(
    world: World, connect: Connect, prefix: str
) -> None:
    """The follower passes everything on: nothing happens."""
    leader = world.leader().name
    other = next(name for name in MEMBERS if name != leader)
    world.split(("a",), (leader, other))
    before = world.first.stdout().splitlines().count("owns 0")
    await asyncio.sleep(6)  # longer than a lease: nothing may happen
    after = world.first.stdout().splitlines().count("owns 0")
    world.network.heal()
    done = await asyncio.to_thread(world.owners.end)

    assert before == after
    check_never_two_are_sure(done)
