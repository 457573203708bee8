"""One life of the ownership of shards: a lease, its claims, and a view of all members.

A life ends when the lease is no longer sure. Then every shard is halted at once, before anything
else can own it.

A shard is halted (it answers nothing more), stopped (its last append has ended), and only then
released. A process that is stopped in order releases its shards without waiting for the lease.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

from rallypoint.base.log import get_logger
from rallypoint.server.etcd import claims
from rallypoint.server.etcd.claims import Claim, member_key
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdCompacted, EtcdError
from rallypoint.server.etcd.lease import TTL_S, Lease, LeaseLost
from rallypoint.server.etcd.values import Change, Condition, prefix_end
from rallypoint.server.etcd.view import View
from rallypoint.server.etcd.watch import watch
from rallypoint.server.fleet.membership import Membership
from rallypoint.server.fleet.planner import plan
from rallypoint.server.fleet.standing import ShardRefused, Standing

log = get_logger()

LOOK_S = 1.0
"""Longest pause between two plans; a change that the watch brings ends it."""
START_LIMIT_S = 30.0
"""For loading a shard."""
STOP_LIMIT_S = 5.0
"""For its last append."""
LEAVE_LIMIT_S = 10.0
"""For an orderly end, all shards together."""
BROKEN_S = 0.2
"""Pause before a broken watch is opened again, with jitter."""
BROKEN_LINE_S = 30.0
"""Time between two lines about it: an outage of etcd breaks each attempt."""
REFUSED_S = 5.0
"""A shard that could not be started is not claimed again for so long."""


class Shards(Protocol):
    """Serves the shards that this process owns."""

    async def start(self, claim: Claim) -> None:
        """Load a shard and serve it. What it raises releases the shard."""

    def halt(self, shard: int) -> None:
        """Answer nothing more, at once; also for a shard that has not started yet."""

    async def stop(self, shard: int) -> None:
        """Return when nothing is written any more. Comes after `halt`."""

    def load_of(self, shard: int) -> int:
        """Return what the shard costs, in any unit: the lightest moves first."""


class OwnershipConfig(Struct, frozen=True):
    """What is fixed for an ownership."""

    prefix: str
    """Of all keys."""
    address: str
    """`host:port` of this coordinator, for agents and other coordinators."""
    shard_count: int
    """Of the store."""
    ttl_s: int = TTL_S
    """Of the lease; etcd grants at least 2 s."""
    store: tuple[Condition, ...] = ()
    """What holds in etcd as long as the store is the one that was opened."""
    identity: str = ""
    """Of the store."""


class Life:
    """One lease and its claims."""

    def __init__(
        self,
        client: EtcdClient,
        config: OwnershipConfig,
        shards: Shards,
        lease: Lease,
        view: View,
        standing: Standing,
    ) -> None:
        """Hold nothing yet; `run` does the work.

        Args:
            client: of etcd.
            config: what is fixed for this process.
            shards: serves what is claimed.
            lease: begun for this life.
            view: what etcd shows; it is read again from the beginning.
            standing: says why shards are not served.
        """
        self.lease = lease
        self.member = secrets.token_hex(8)
        self.serving: set[int] = set()
        """Shards that have started and were not halted."""
        self._client = client
        self._config = config
        self._shards = shards
        self._view = view
        self._standing = standing
        key = member_key(config.prefix, self.member)
        self._membership = Membership(client, key, config.address, lease.id, config.store)
        self._held: dict[int, Claim] = {}
        """Shards that are claimed, whether they have started or not."""
        self._busy: set[int] = set()
        """Shards that a task claims, starts or releases."""
        self._not_before_s: dict[int, float] = {}
        """When a shard may be claimed again that could not be started, by the loop's clock."""
        self._release_after_s: dict[int, float] = {}
        """The same of a shard whose release has failed."""
        self._claiming: dict[asyncio.Task[None], int] = {}
        """Shards that tasks claim and start."""
        self._lost: LeaseLost | None = None
        """Why the lease is not sure any more."""
        self._changed = asyncio.Event()
        view.restart()

    async def run(self, leaves: asyncio.Event) -> None:
        """Live until the lease is lost, or `leaves` is set and everything is released.

        Raises:
            LeaseLost: when the lease is not sure any more.
            EtcdError: when the life could not begin.
        """
        try:
            await self._membership.join()
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._follow())
                sharing = tasks.create_task(self._share(tasks))
                leaving = tasks.create_task(leaves.wait())
                keeping = tasks.create_task(self._keep())
                watching = tasks.create_task(self._standing.watch(self.lease.is_late))
                await asyncio.wait([keeping, leaving], return_when=asyncio.FIRST_COMPLETED)
                for task in (following, sharing, leaving, watching, *self._claiming):
                    task.cancel()
                if not keeping.done():
                    await self._leave()
                    keeping.cancel()
            if self._lost is not None:
                raise self._lost
        finally:
            self._halt_all()
            await self._stop_all()
            with suppress(EtcdError, TimeoutError):
                await self._client.revoke(self.lease.id, limit_s=1.0)

    async def _keep(self) -> None:
        """Keep the lease; halt everything as soon as it is not sure any more."""
        try:
            await self.lease.keep(self._membership.key)
        except LeaseLost as error:
            self._lost = error
            self._halt_all()
            self._standing.lose(str(error))

    async def _follow(self) -> None:
        """Keep the view up to date."""
        loop = asyncio.get_running_loop()
        is_known, told_s = False, -math.inf
        while True:
            try:
                if not is_known:
                    await self._look()
                    is_known = True
                begin, end = self._view.begin, prefix_end(self._view.begin)
                # From the last known revision, although it brings nothing new. Older members take a
                # watch at the revision of a compaction, and do not tell what was deleted there.
                await watch(self._client, begin, end, self._view.revision, self._see)
            except EtcdCompacted:
                is_known = False
            except EtcdError as error:
                if loop.time() - told_s >= BROKEN_LINE_S:
                    told_s = loop.time()
                    log.info("watch_broken", why=str(error))
            await asyncio.sleep(BROKEN_S * random.uniform(0.5, 1.5))

    async def _look(self) -> None:
        """Read all members and owners."""
        read = await self._client.range(self._view.begin, prefix_end(self._view.begin))
        self._view.reset(read.found, read.revision)
        self._changed.set()

    def _see(self, changes: tuple[Change, ...]) -> None:
        self._view.follow(changes)
        self._changed.set()

    async def _share(self, tasks: asyncio.TaskGroup) -> None:
        """Claim and release shards as the plan says, each in a task."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            self._changed.clear()
            if not self.lease.is_sure():
                continue  # the life ends, unless a renewal is about to be noted that came in time
            if self._standing.trouble:
                self._suspend_all(tasks)
                continue
            if self.member not in self._view.members:
                continue  # the view is older than this life
            with suppress(EtcdError):
                await self._membership.forgive()
            planned = plan(
                self.member,
                self._view.taking_part(),
                # A claim under way counts as one: what has become free since is not for it alone.
                dict.fromkeys(self._claiming.values(), self.member) | self._view.owners_by_id(),
                self._config.shard_count,
                {shard: self._shards.load_of(shard) for shard in self.serving},
                self._view.refused(),
            )
            halted = self._held.keys() - self.serving  # a release of theirs has failed
            for shard in (*planned.releases, *sorted(halted)):
                may_try = loop.time() >= self._release_after_s.get(shard, 0)
                if may_try and shard in self._held and shard not in self._busy:
                    self._busy.add(shard)
                    tasks.create_task(self._release(shard))
            self._claim_all((*planned.claims, *self._late_claims()), tasks)

    def _claim_all(self, shards: Iterable[int], tasks: asyncio.TaskGroup) -> None:
        """Claim these shards, but for those that have failed lately."""
        now_s = asyncio.get_running_loop().time()
        for shard in shards:
            may_try = now_s >= self._not_before_s.get(shard, 0)
            if may_try and shard not in self._held and shard not in self._busy:
                self._busy.add(shard)
                task = tasks.create_task(self._claim(shard))
                self._claiming[task] = shard
                task.add_done_callback(self._claiming.pop)

    def _suspend_all(self, tasks: asyncio.TaskGroup) -> None:
        """Serve nothing while etcd takes no change; then, the shards are released and claimed."""
        self._not_before_s.clear()
        for shard in self.serving - self._busy:
            self._busy.add(shard)
            tasks.create_task(self._suspend(shard))

    async def _suspend(self, shard: int) -> None:
        self.serving.discard(shard)
        self._shards.halt(shard)
        await self._stop(shard)
        self._busy.discard(shard)

    def drop(self, shard: int, why: str) -> None:
        """Let the next plan release a shard that has halted by itself."""
        self._standing.refuse(shard, why)
        self.serving.discard(shard)
        self._not_before_s[shard] = asyncio.get_running_loop().time() + REFUSED_S
        self._changed.set()

    def _late_claims(self) -> list[int]:
        """Return shards whose claim has succeeded although its answer was lost."""
        return [
            shard
            for shard, owned in self._view.owners.items()
            if owned.member == self.member and shard not in self._held
        ]

    async def _claim(self, shard: int) -> None:
        """Claim a shard and start it; whatever goes wrong leaves it to the next plan."""
        try:
            claim = await claims.take(
                *(self._client, self._config.prefix, shard, self.member, self.lease.id),
                self._config.store,
            )
            if claim is None:
                return
            self._held[shard] = claim
            self._view.note_claimed(claim, self.member)
            log.info("shard_claimed", shard=shard, revision=claim.revision)
            try:
                async with asyncio.timeout(START_LIMIT_S):
                    await self._shards.start(claim)
                self.serving.add(shard)
                self._standing.accept(shard)
                with suppress(EtcdError):
                    await self._membership.accept(shard)
            except Exception as error:  # one shard must not end the others
                is_known = isinstance(error, ShardRefused | TimeoutError)
                why = str(error) or f"shard {shard} was not loaded within {START_LIMIT_S:g} s"
                log.error("shard_refused", shard=shard, why=why, exc_info=not is_known and error)
                self._standing.refuse(shard, why)
                self._not_before_s[shard] = asyncio.get_running_loop().time() + REFUSED_S
                with suppress(EtcdError):  # the others learn it before the shard is free
                    await self._membership.decline(shard)
                await self._release(shard)
        except EtcdError as error:
            log.info("claim_failed", shard=shard, why=str(error))
        finally:
            self._busy.discard(shard)

    async def _release(self, shard: int) -> None:
        """Halt, stop, then release: the order in which nothing is decided twice."""
        self._busy.add(shard)
        self.serving.discard(shard)
        self._shards.halt(shard)
        await self._stop(shard)
        try:
            claim = self._held[shard]
            revision = await claims.give_up(self._client, claim)
            if revision is not None:
                self._view.note_released(claim, revision)
            del self._held[shard]
            log.info("shard_released", shard=shard)
            self._changed.set()
        except EtcdError as error:  # the next plan tries again, after a pause
            log.warning("release_failed", shard=shard, why=str(error))
            self._release_after_s[shard] = asyncio.get_running_loop().time() + LOOK_S
        finally:
            self._busy.discard(shard)

    async def _stop(self, shard: int) -> None:
        """Stop a shard that is halted. If that fails, etcd refuses what it still writes."""
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await self._shards.stop(shard)
        except Exception as error:  # one shard must not end the others
            log.error("stop_failed", shard=shard, why=str(error), exc_info=error)

    async def _leave(self) -> None:
        """Release everything, while the lease is kept."""
        if self._claiming:
            await asyncio.wait(self._claiming)
        with suppress(EtcdError, TimeoutError):
            async with asyncio.timeout(LEAVE_LIMIT_S):
                await self._membership.leave()
                async with asyncio.TaskGroup() as tasks:
                    for shard in self._held.keys() - self._busy:
                        tasks.create_task(self._release(shard))

    def _halt_all(self) -> None:
        self.serving.clear()
        for shard in self._held:
            self._shards.halt(shard)

    async def _stop_all(self) -> None:
        """Stop what was not released; the lease is over, so etcd refuses what it still writes."""
        held = tuple(self._held)
        self._held.clear()
        async with asyncio.TaskGroup() as tasks:
            for shard in held:
                tasks.create_task(self._stop(shard))
