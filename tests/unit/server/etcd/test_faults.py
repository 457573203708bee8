"""A client of three members, some of which are killed, frozen or replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdCompacted, EtcdError, EtcdUnreachable
from rallypoint.server.etcd.values import Change, Condition, Get, Put, Target
from rallypoint.server.etcd.watch import watch
from support.etcd.clients import Connect, lose_answers
from support.etcd.cluster import Cluster, pick_ports, running

LIMIT_S = 30.0


@pytest.fixture
def trio(etcd_of_three: Cluster) -> Iterator[Cluster]:
    yield etcd_of_three
    etcd_of_three.heal()


class Watching:
    """What a watch has seen, and how it broke."""

    def __init__(self, client: EtcdClient, prefix: str, revision: int) -> None:
        self._arguments = client, f"{prefix}/".encode(), f"{prefix}0".encode(), revision
        self.seen: asyncio.Queue[Change] = asyncio.Queue()
        self.broken: EtcdError | None = None

    async def run(self) -> None:
        def see(changes: tuple[Change, ...]) -> None:
            for change in changes:
                self.seen.put_nowait(change)

        try:
            await watch(*self._arguments, see)
        except EtcdError as error:
            self.broken = error


@pytest.mark.long
async def test_one_member_may_be_gone(trio: Cluster, connect: Connect, prefix: str) -> None:
    """Whichever is killed or frozen, also the leader: every call is answered within its limit."""
    client = connect(trio, prefix)
    number = 0
    for fault in ("kill", "freeze"):
        for victim in (trio.find_leader(), trio.members[0]):
            if victim.process is None or victim.is_frozen:
                continue
            getattr(victim, fault)()
            number += 1
            key = f"{prefix}/{number}".encode()  # a late attempt must not undo what came after it
            await client.transact([], [Put(key, b"%d" % number)])
            found = await client.get(key)
            trio.heal()

            assert found is not None and found.value == b"%d" % number


@pytest.mark.long
async def test_two_of_three_gone(trio: Cluster, connect: Connect, prefix: str) -> None:
    """A call ends at its limit and says what to look at; with one back, the next is answered."""
    client = connect(trio, prefix)
    await client.get(prefix.encode())
    trio.members[0].kill()
    trio.members[1].freeze()
    began_s = time.monotonic()
    with pytest.raises(EtcdUnreachable, match="members"):
        await client.get(prefix.encode(), limit_s=2.0)
    took_s = time.monotonic() - began_s
    trio.members[1].thaw()

    assert took_s < 3.0
    assert await client.get(prefix.encode(), limit_s=LIMIT_S) is None


async def test_late_attempt_changes_nothing(trio: Cluster, connect: Connect, prefix: str) -> None:
    """An attempt that a frozen member kept, and a second one elsewhere: it happens once."""
    client = connect(trio, prefix)
    key = prefix.encode()
    await client.get(key)  # connects
    frozen = next(one for one in trio.members if one.endpoint == client.endpoints.current.name)
    frozen.freeze()

    absent = [Condition(key, Target.CREATED, 0)]
    first = await client.transact(absent, [Put(key, b"1")], [Get(key)])
    frozen.thaw()
    await connect(trio, prefix).get(key)
    found = await client.get(key)

    # A busy machine may need a third attempt, which finds what the second has done.
    done = first.revision if first.is_done else first.found[0][0].created
    assert found is not None and found.created == found.modified == done


async def test_lost_answer_is_told_apart(etcd: Cluster, connect: Connect, prefix: str) -> None:
    """The second attempt fails its condition, and `otherwise` shows what the first has done."""
    client = connect(etcd, prefix)
    key = prefix.encode()
    lose_answers(client, 1)

    outcome = await client.transact(
        [Condition(key, Target.CREATED, 0)], [Put(key, b"mine")], [Get(key)]
    )

    assert not outcome.is_done
    assert b"mine" == outcome.found[0][0].value


async def test_watch_sees_every_change_in_order(
    etcd: Cluster, connect: Connect, prefix: str
) -> None:
    client = connect(etcd, prefix)
    key = f"{prefix}/key".encode()
    first = await client.transact([], [Put(key, b"0")])
    watching = Watching(client, prefix, first.revision)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watching.run())
        for number in range(1, 5):
            await client.transact([], [Put(key, b"%d" % number)])
        values = [(await watching.seen.get()).pair.value for _ in range(5)]
        task.cancel()

    assert [b"0", b"1", b"2", b"3", b"4"] == values


async def test_watch_of_a_compacted_revision(etcd: Cluster, connect: Connect, prefix: str) -> None:
    client = connect(etcd, prefix)
    first = await client.transact([], [Put(prefix.encode(), b"0")])
    last = await client.transact([], [Put(prefix.encode(), b"1")])
    etcd.control("compact", str(last.revision))
    watching = Watching(client, prefix, first.revision)
    await watching.run()

    assert isinstance(watching.broken, EtcdCompacted)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("freeze", marks=pytest.mark.long),
        "kill",
        pytest.param("most", marks=pytest.mark.long),
    ],
)
async def test_watch_breaks_with_its_member(
    trio: Cluster, connect: Connect, prefix: str, fault: str
) -> None:
    """One that was killed, one that is frozen, and one that has lost its leader."""
    client = connect(trio, prefix)
    watching = Watching(client, prefix, 1)
    name = client.endpoints.current.name
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watching.run())
        await client.transact([], [Put(f"{prefix}/key".encode(), b"")])
        await watching.seen.get()
        for member in trio.members:
            if (member.endpoint == name) != (fault == "most"):
                getattr(member, "kill" if fault == "most" else fault)()
        await task

    assert isinstance(watching.broken, EtcdUnreachable), watching.broken
    assert name != client.endpoints.current.name


@pytest.mark.long
async def test_member_that_is_replaced(
    tmp_path_factory: pytest.TempPathFactory, connect: Connect, prefix: str
) -> None:
    """The others are asked; the endpoint that has gone for ever costs an attempt."""
    with running(tmp_path_factory.mktemp("etcd"), 3, "--strict-reconfig-check=false") as cluster:
        client = connect(cluster, prefix)
        await client.transact([], [Put(prefix.encode(), b"1")])
        if cluster.find_leader() is cluster.members[0]:
            cluster.members.append(cluster.members.pop(0))
        old = cluster.members[0]
        listed = cluster.control("member", "list", member=1).splitlines()
        (gone,) = (line.split(", ")[0] for line in listed if f", {old.name}, " in line)
        cluster.control("member", "remove", gone, member=1)
        port, peer_port = pick_ports(2)
        added = cluster.control(
            "member", "add", "m3", f"--peer-urls=http://127.0.0.1:{peer_port}", member=1
        )
        (peers,) = (line.split('"')[1] for line in added.splitlines() if "INITIAL_CLUSTER=" in line)
        folder = tmp_path_factory.mktemp("new")
        new = cluster.make("m3", port, peer_port, peers, folder, state="existing")
        cluster.members.append(new)
        cluster.restart(new)
        cluster.members[1].kill()  # so the new member is needed

        found = await client.get(prefix.encode(), limit_s=LIMIT_S)
        assert found is not None and found.value == b"1"
