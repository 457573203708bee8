"""Owners whose etcd, or who themselves, are killed, frozen and continued: never two at a time."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from support.etcd.clients import Connect
from support.etcd.cluster import Cluster
from support.etcd.owner_processes import Processes, check_journals, check_never_two_are_sure
from support.etcd.owners import SHARDS, Owners

QUIET_S = 6.0
"""Longer than a lease: what has not happened by then does not happen."""


@pytest.fixture
def trio(etcd_of_three: Cluster) -> Iterator[Cluster]:
    yield etcd_of_three
    etcd_of_three.heal()


@pytest.fixture
async def owners(trio: Cluster, connect: Connect, prefix: str) -> AsyncIterator[Owners]:
    owners = Owners(prefix, lambda: connect(trio, prefix))
    yield owners
    await owners.end()


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "freeze"])
@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_one_member_of_etcd_may_be_gone(
    owners: Owners, trio: Cluster, fault: str, role: str
) -> None:
    """No shard is halted, whichever member it is, and however it is gone."""
    for _ in range(3):
        owners.start()
    await owners.until_settled(5, 5, 6)
    before = [dict(served.claims) for served in owners.served]
    leader = trio.find_leader()
    others = [member for member in trio.members if member is not leader]
    getattr(leader if role == "leader" else others[0], fault)()
    ends_s = time.monotonic() + QUIET_S
    while time.monotonic() < ends_s:
        assert sorted(owners.shares) == [5, 5, 6]
        await asyncio.sleep(0.02)  # nothing may happen, so there is nothing to wait for

    assert before == [dict(served.claims) for served in owners.served]


async def test_most_members_of_etcd_gone_and_back(owners: Owners, trio: Cluster) -> None:
    """Everything is halted before a lease can end, with the reason; then it begins again."""
    owners.start()
    owners.start()
    await owners.until(8, 8)
    trio.members[0].kill()
    trio.members[1].freeze()
    halted_s = await owners.until(0, 0)
    await owners.until_true(lambda: all(served.claims == {} for served in owners.served))
    await owners.until_true(lambda: all(one.standing.trouble for one in owners.ownerships))
    trio.members[1].thaw()
    await owners.until(8, 8)

    assert halted_s < 4.0, "the lease"


@pytest.fixture
def processes(prefix: str, tmp_path: Path) -> Iterator[Callable[[Cluster, int], Processes]]:
    made: list[Processes] = []

    def make(cluster: Cluster, ttl_s: int) -> Processes:
        made.append(Processes(cluster, prefix, tmp_path, ttl_s))
        return made[-1]

    yield make
    for one in made:
        for command in one.all.values():
            command.kill()
            command.drain()


@pytest.mark.parametrize(
    ("fixture", "ttl_s"),
    [("etcd", 3), pytest.param("etcd_of_three", 4, marks=pytest.mark.long)],
)
async def test_owner_that_is_frozen_and_continues(
    request: pytest.FixtureRequest,
    processes: Callable[[Cluster, int], Processes],
    connect: Connect,
    prefix: str,
    fixture: str,
    ttl_s: int,
) -> None:
    """Nothing it still writes is accepted, and it is never sure while another one is."""
    cluster: Cluster = request.getfixturevalue(fixture)
    owners = processes(cluster, ttl_s)
    first = owners.start("a")
    await asyncio.to_thread(first.wait_stdout, f"owns {SHARDS}")
    second = owners.start("b")
    for one in (first, second):
        await asyncio.to_thread(one.wait_stdout, f"owns {SHARDS // 2}")
    first.signal(signal.SIGSTOP)
    began_s = time.monotonic()
    await asyncio.to_thread(second.wait_stdout, f"owns {SHARDS}")
    took_s = time.monotonic() - began_s
    first.signal(signal.SIGCONT)
    await asyncio.to_thread(first.wait_stdout, f"owns {SHARDS // 2}", 2)
    done = await asyncio.to_thread(owners.end)

    assert took_s < ttl_s + 3, "the lease, etcd's pause between two looks, and a plan"
    assert done["a"]["refused"]
    check_never_two_are_sure(done)
    await check_journals(connect(cluster, prefix), prefix, done)


@pytest.mark.long
async def test_owner_that_is_killed(
    trio: Cluster,
    processes: Callable[[Cluster, int], Processes],
    connect: Connect,
    prefix: str,
) -> None:
    """Its shards are served elsewhere when its lease has ended."""
    owners = processes(trio, 4)
    first = owners.start("a")
    await asyncio.to_thread(first.wait_stdout, f"owns {SHARDS}")
    second = owners.start("b")
    for one in (first, second):
        await asyncio.to_thread(one.wait_stdout, f"owns {SHARDS // 2}")
    first.kill()
    began_s = time.monotonic()
    await asyncio.to_thread(second.wait_stdout, f"owns {SHARDS}")
    took_s = time.monotonic() - began_s
    del owners.all["a"]
    done = await asyncio.to_thread(owners.end)
    first.drain()

    assert took_s < 4 + 3
    await check_journals(connect(trio, prefix), prefix, done)
