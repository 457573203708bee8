"""The model of etcd, and its client, answer as a real etcd and the product's client do.

Each script runs on both. What it gets must be equal: values, revisions, changes, kinds of errors.
Revisions count from the beginning of a script, leases by the order in which they were granted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aetcd import rpc

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdError
from rallypoint.server.etcd.values import (
    Change,
    Condition,
    Delete,
    Get,
    Granted,
    KeyValue,
    Outcome,
    Put,
    Ranged,
    Target,
    prefix_end,
)
from rallypoint.server.etcd.watch import watch
from sim.shards import client as model_client
from sim.shards.client import SimClient
from sim.shards.etcd import Etcd
from support.etcd.clients import connecting
from support.etcd.cluster import Cluster, running

TTL_S = 2
"""The shortest lease that etcd grants as it was asked for."""
WAIT_LIMIT_S = 30.0
ALL = b"/s/"
A, B, C, D = (ALL + name for name in (b"a", b"b", b"c", b"d"))


class Side:
    """One of the two: a client, what only a test asks for, and what a script has got so far."""

    def __init__(self, client: Any, cluster: Cluster | None = None) -> None:
        self.client = client
        self.cluster = cluster
        self.watch: Callable[..., Awaitable[None]] = watch
        self.notes: list[object] = []
        self.base = self.term = 0
        self._leases: list[int] = []

    async def begin(self) -> None:
        """Forget what was before."""
        await self.client.transact([], [Delete(ALL, prefix_end(ALL))])
        found = await self.client.range(A)
        self.base, self.term, self.notes, self._leases = found.revision, found.term, [], []

    async def note(self, asked: Awaitable[Any]) -> Any:
        """Wait for an answer and note it."""
        try:
            answer = await asked
        except EtcdError as error:
            self.notes.append(type(error).__name__)
            return None
        self.notes.append(self.plain(answer))
        return answer

    def plain(self, value: Any) -> object:
        """Return an answer with revisions, terms and leases of its script."""
        match value:
            case KeyValue(key, data, created, modified, lease):
                dates = (created and created - self.base, modified - self.base)
                return key, data[:20], dates, lease and self._number(lease)
            case Ranged(found, has_more, revision, term):
                pairs = [self.plain(one) for one in found]
                return pairs, has_more, revision - self.base, term - self.term
            case Outcome(is_done, revision, reads):
                gets = [[self.plain(one) for one in read] for read in reads]
                return is_done, revision - self.base, gets
            case Granted(lease, ttl_s, term):
                return self._number(lease), ttl_s, term - self.term
            case Change(pair, is_deleted):
                return self.plain(pair), is_deleted
        return value

    def _number(self, lease: int) -> int:
        if lease not in self._leases:
            self._leases.append(lease)
        return self._leases.index(lease) + 1

    async def put(self, *keys: bytes, value: bytes = b"v", lease: int = 0) -> Any:
        """Set keys, one after another."""
        for key in keys:
            await self.note(self.client.transact([], [Put(key, value, lease)]))

    async def see(self, first: int, last: int | None = None) -> None:
        """Note the changes from a revision of the script on, or an error.

        Args:
            first: revision of the first change.
            last: revision of the last one; None: the newest one now.
        """
        seen: list[Change] = []
        done = asyncio.Event()
        newest = (await self.client.range(A)).revision if last is None else self.base + last

        def take(changes: tuple[Change, ...]) -> None:
            seen.extend(changes)
            if changes[-1].pair.modified >= newest:
                done.set()

        async def follow() -> None:
            try:
                await self.watch(self.client, ALL, prefix_end(ALL), self.base + first, take)
            except* EtcdError as errors:
                self.notes += [type(one).__name__ for one in errors.exceptions]
            done.set()

        async with asyncio.timeout(WAIT_LIMIT_S), asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(follow())
            await done.wait()
            watching.cancel()
        self.notes.append([self.plain(one) for one in seen])

    async def compact(self, revision: int) -> None:
        """Compact away what was before a revision of the script."""
        asked = rpc.CompactionRequest(revision=self.base + revision, physical=True)
        await self.client.endpoints.current.keys.Compact(asked)

    async def outdate(self, revision: int) -> None:
        """Compact too, where the model counts changed keys as compacted by itself."""
        await self.compact(revision)

    def expire(self, lease: int) -> None:
        """Let the time of a lease pass, where it does not pass by itself."""

    async def elect(self) -> None:
        """Begin a term: a member that is alone elects itself when it starts again."""
        assert self.cluster is not None
        member = self.cluster.members[0]
        member.kill()
        await asyncio.to_thread(self.cluster.restart, member)


class ModelSide(Side):
    """The model, which answers at once."""

    def __init__(self) -> None:
        self._etcd = etcd = Etcd()
        clock = SimpleNamespace(now_ms=0, at=lambda at_ms, call: call(), after=lambda _, call: None)
        granted = iter(range(1, 100))
        fleet = SimpleNamespace(
            etcd=etcd,
            is_instant=True,
            is_over=False,
            world=SimpleNamespace(clock=clock),
            rng=SimpleNamespace(randint=lambda low, high: low),
            cut_until_ms=lambda member: 0,
            watch_ms=lambda: 0,
            transact=lambda client, asked_ms, *parts: etcd.transact(*parts),
            grant=lambda ttl_s: etcd.grant(next(granted), ttl_s * 1000, clock.now_ms),
            renew=lambda member, lease: etcd.renew(lease, clock.now_ms),
            revoke=etcd.revoke,
        )
        member: Any = SimpleNamespace(fleet=fleet)
        super().__init__(SimClient(member))
        self._clock = clock
        self.watch = model_client.watch

    async def compact(self, revision: int) -> None:
        assert self._etcd.revision == self.base + revision, "the model compacts only all"
        self._etcd.compact()

    async def outdate(self, revision: int) -> None:
        pass

    def expire(self, lease: int) -> None:
        self._clock.now_ms = self._etcd.leases[lease].ends_ms
        self._etcd.revoke(lease)

    async def elect(self) -> None:
        self._etcd.elect(self._clock.now_ms)


# --- the scripts ---


async def ranges(side: Side) -> None:
    await side.put(C, A, B, A)
    for key, end, options in (
        (A, b"", {}),
        (D, b"", {}),
        (A, C, {}),
        (ALL, prefix_end(ALL), {"limit": 2}),
        (ALL, prefix_end(ALL), {"limit": 3}),
        (A + b"\0", prefix_end(ALL), {"limit": 1}),
        (ALL, prefix_end(ALL), {"keys_only": True}),
        (C, A, {}),
    ):
        await side.note(side.client.range(key, end, **options))
    await side.note(side.client.get(B))
    await side.note(side.client.get(D))


async def reads_of_a_revision(side: Side) -> None:
    await side.put(A, B)
    await side.note(side.client.range(A, revision=side.base + 2))
    await side.note(side.client.range(A, revision=side.base + 1))
    await side.note(side.client.range(A, revision=side.base + 3))


async def reads_of_an_old_revision(side: Side) -> None:
    await side.put(A, B, C, A)
    await side.note(side.client.transact([], [Delete(C)]))
    await side.outdate(5)
    for key, end in ((A, b""), (C, b""), (B, D)):
        await side.note(side.client.range(key, end, revision=side.base + 3))
    await side.note(side.client.range(C, revision=side.base + 5))


async def reads_of_a_compacted_revision(side: Side) -> None:
    await side.put(A, B, A)
    await side.note(side.client.transact([], [Delete(B)]))
    await side.compact(4)
    for key in (A, B, C):
        for revision in (1, 3, 4):
            await side.note(side.client.range(key, revision=side.base + revision))


async def conditions(side: Side) -> None:
    lease = await side.note(side.client.grant(60))
    await side.put(A)
    await side.put(A, value=b"w", lease=lease.lease)
    missing, created = 0, side.base + 1
    for held in (
        Condition(A, Target.CREATED, created),
        Condition(A, Target.CREATED, created + 1),
        Condition(A, Target.CREATED, 0),
        Condition(A, Target.MODIFIED, created + 1),
        Condition(A, Target.MODIFIED, created),
        Condition(A, Target.LEASE, lease.lease),
        Condition(A, Target.LEASE, missing),
        Condition(A, Target.VALUE, value=b"w"),
        Condition(A, Target.VALUE, value=b"v"),
        Condition(D, Target.CREATED, missing),
        Condition(D, Target.CREATED, created),
        Condition(D, Target.MODIFIED, missing),
        Condition(D, Target.LEASE, missing),
        Condition(D, Target.VALUE, value=b""),
    ):
        await side.note(side.client.transact([held], [Get(A)], [Get(D)]))


async def branches(side: Side) -> None:
    free = Condition(A, Target.CREATED, 0)
    both = [free, Condition(B, Target.CREATED, 0)]
    await side.note(side.client.transact(both, [Put(A, b"1"), Put(B, b"1")], [Get(A)]))
    await side.note(side.client.transact(both, [Put(C, b"1")], [Get(A), Get(D), Get(A, D)]))
    await side.note(side.client.transact([free], [Put(C, b"1")]))
    await side.note(side.client.transact([free], [], [Put(A, b"2"), Get(A), Delete(B), Get(A, D)]))
    await side.note(side.client.transact([], []))
    await side.note(side.client.range(ALL, prefix_end(ALL)))


async def deletes(side: Side) -> None:
    await side.put(A, B, C)
    await side.note(side.client.transact([], [Delete(D)]))
    await side.note(side.client.transact([], [Delete(A, C)]))
    await side.put(A)
    await side.note(side.client.transact([], [Delete(A), Put(D, b"d")]))
    await side.note(side.client.range(ALL, prefix_end(ALL)))
    await side.see(1)


async def limits(side: Side) -> None:
    many = [Put(ALL + b"%d" % number, b"") for number in range(129)]
    held = [Condition(one.key, Target.CREATED, 0) for one in many]
    await side.note(side.client.transact(held[:128], many[:128], many[:128]))
    await side.note(side.client.transact([], many))
    await side.note(side.client.transact([], [], many))
    await side.note(side.client.transact(held, []))
    await side.note(side.client.transact([], [Put(A, b"x" * (1 << 20))]))
    await side.note(side.client.transact([], [Put(A, b"x" * (3 << 19))]))
    halves = [Put(A, b"x" * (3 << 18)), Put(B, b"x" * (3 << 18))]
    await side.note(side.client.transact([], halves))
    await side.note(side.client.transact([], [], halves))


async def keys_given_twice(side: Side) -> None:
    await side.note(side.client.transact([], [Put(A, b"1"), Put(A, b"2")]))
    await side.note(side.client.transact([], [], [Put(A, b"1"), Put(A, b"2")]))
    await side.note(side.client.transact([], [Put(B, b"1"), Delete(A, C)]))
    await side.note(side.client.transact([], [Delete(B), Put(B, b"1")]))
    await side.note(side.client.transact([], [Delete(A), Delete(A, C)]))
    await side.note(side.client.transact([], [Put(A, b"1")], [Put(A, b"2")]))
    await side.note(side.client.transact([], [Put(C, b"1"), Delete(A, C)]))


async def leases(side: Side) -> None:
    one, two = [await side.note(side.client.grant(ttl_s)) for ttl_s in (60, 90)]
    await side.put(B, A, lease=one.lease)
    await side.put(C, lease=two.lease)
    await side.put(A, D, lease=two.lease)  # A changes its lease
    await side.put(D)  # and D loses it
    await side.note(side.client.keep_alive(one.lease))
    await side.note(side.client.revoke(one.lease))
    await side.note(side.client.range(ALL, prefix_end(ALL)))
    await side.note(side.client.revoke(one.lease))
    await side.note(side.client.keep_alive(one.lease))
    await side.note(side.client.transact([], [Put(B, b"v", one.lease)]))
    gone = [Put(C, b"new"), Put(B, b"v", one.lease)]
    await side.note(side.client.transact([], gone))
    free = Condition(B, Target.CREATED, 0)
    await side.note(side.client.transact([free], [Put(B, b"v", two.lease)], gone))
    await side.note(side.client.transact([], [Delete(B), Delete(C)]))
    await side.note(side.client.revoke(two.lease))
    await side.note(side.client.range(ALL, prefix_end(ALL)))
    await side.see(1)


async def expiry(side: Side) -> None:
    lease = await side.note(side.client.grant(TTL_S))
    await side.put(C, A, lease=lease.lease)
    await side.put(B)
    await side.note(side.client.keep_alive(lease.lease))
    side.expire(lease.lease)
    await side.see(1, 4)
    await side.note(side.client.keep_alive(lease.lease))
    await side.note(side.client.revoke(lease.lease))
    await side.note(side.client.transact([], [Put(C, b"v", lease.lease)]))
    await side.note(side.client.range(ALL, prefix_end(ALL)))


async def watches(side: Side) -> None:
    await side.put(A, b"/other", A, B)
    await side.see(1)
    await side.see(2)
    both = [Put(C, b"1"), Delete(A), Put(B, b"2")]
    await side.note(side.client.transact([], both))
    await side.see(3)

    before = len(side.notes)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(side.see(6, 7))  # of the future
        await asyncio.sleep(0)
        await side.put(A, B)
    side.notes[before:] = sorted(side.notes[before:], key=repr)  # either may be answered first


async def compacted_watches(side: Side) -> None:
    await side.put(A, B, A)
    await side.compact(3)
    await side.put(B)
    await side.see(1)
    for first in (2, 3, 4):
        await side.see(first)
    await side.note(side.client.transact([], [Delete(A), Put(C, b"c")]))
    await side.compact(5)
    await side.put(B)
    await side.see(5)


async def elections(side: Side) -> None:
    lease = await side.note(side.client.grant(60))
    await side.put(A, lease=lease.lease)
    await side.elect()
    await side.note(side.client.range(ALL, prefix_end(ALL)))
    await side.note(side.client.keep_alive(lease.lease))
    await side.see(1)
    await side.note(side.client.revoke(lease.lease))


SCRIPTS = (
    ranges,
    reads_of_a_revision,
    reads_of_an_old_revision,
    reads_of_a_compacted_revision,
    conditions,
    branches,
    deletes,
    limits,
    keys_given_twice,
    leases,
    expiry,
    watches,
    compacted_watches,
    elections,
)


async def play(side: Side) -> dict[str, list[object]]:
    """Run all scripts; return what each has got."""
    found = {}
    for script in SCRIPTS:
        await side.begin()
        await script(side)
        found[script.__name__] = side.notes
    return found


@asynccontextmanager
async def real_side(folder: Path) -> AsyncIterator[Side]:
    with running(folder) as cluster:
        async with connecting() as connect:
            client: EtcdClient = connect(cluster)
            yield Side(client, cluster)


async def test_model_answers_as_etcd_does(tmp_path: Path) -> None:
    async with real_side(tmp_path) as real:
        expected = await play(real)
    actual = await play(ModelSide())

    for name, notes in expected.items():
        assert notes == actual[name], name
