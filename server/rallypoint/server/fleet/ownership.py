"""Owns shards, one life after the other, until it is asked to leave, and knows the other owners.

One *life* is one lease: a member with a new id, its claims, and a view of all members. When it
ends, the next one begins with nothing, however the last one ended.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdError, EtcdUnreachable
from rallypoint.server.etcd.lease import LeaseLost, begin_lease
from rallypoint.server.etcd.view import View
from rallypoint.server.fleet.life import Life, OwnershipConfig, Shards
from rallypoint.server.fleet.standing import Standing

RETRY_S, RETRY_S_MAX = 0.2, 2.0
"""Pause before the next life, doubled while they fail, with jitter."""


class Ownership:
    """The shards of this process, and the directory of all shards of the store."""

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        """Own nothing yet; `run` does the work. `prefix` is that of all keys."""
        self._client = client
        self._config: OwnershipConfig | None = None
        """None: the store is not open."""
        self._leaves = asyncio.Event()
        self._life: Life | None = None
        self.view = View(prefix)
        """What etcd shows, as far as it is known; it may be out of date."""
        self.standing = Standing(client, self.view.wake)
        """Why shards are not served."""
        self.address_trouble: Callable[[], str] = str
        """Returns what is wrong with the address of this process; empty: nothing is known."""

    @property
    def coordinator_id(self) -> str:
        """Return the identity of the store; empty before it is open."""
        return "" if self._config is None else self._config.identity

    @property
    def shard_count(self) -> int:
        """Return the number of shards; 0 before the store is open."""
        return 0 if self._config is None else self._config.shard_count

    @property
    def changed(self) -> asyncio.Event:
        """Return an event that the next change sets."""
        return self.view.changed

    def has_lease(self) -> bool:
        """Return whether nothing else can own what this process owns, at this moment."""
        return self._life is not None and self._life.lease.is_sure()

    def is_sure(self) -> bool:
        """Return whether etcd can be reached and takes changes, and this process stays."""
        return self.has_lease() and not self.standing.trouble and not self._leaves.is_set()

    def owns(self, shard: int) -> bool:
        """Return whether this process serves a shard, and is sure of it, at this moment."""
        return self.has_lease() and self._life is not None and shard in self._life.serving

    def trouble(self, shard: int | None = None) -> str:
        """Return why a shard is not served, in one line; None: why none can be."""
        if self._config is None:
            return self.standing.trouble or "etcd was not reached yet"
        if shard is None:
            return self.standing.trouble
        is_at_this_address = self._owner_address(shard) == self._config.address
        return self.standing.why(shard) or (self.address_trouble() if is_at_this_address else "")

    def owner_of(self, shard: int) -> str | None:
        """Return where another coordinator serves a shard, as far as it is known."""
        address = self._owner_address(shard)
        return None if self._config is None or address == self._config.address else address

    def _owner_address(self, shard: int) -> str | None:
        owned = self.view.owners.get(shard)
        member = None if owned is None else self.view.members.get(owned.member)
        return None if member is None else member.address

    def drop(self, shard: int, why: str) -> None:
        """Release a shard that has halted by itself, and claim it no more for a while."""
        if self._life is not None:
            self._life.drop(shard, why)

    def leave(self) -> None:
        """Release everything and end; `run` returns."""
        self._leaves.set()
        self.view.wake()

    async def run(self, config: OwnershipConfig, shards: Shards) -> None:
        """Own a share of the shards until `leave`, or until cancelled.

        Args:
            config: of the store, which is open.
            shards: serves what is owned.
        """
        self._config = config
        self.view.wake()
        pause_s = RETRY_S
        while not self._leaves.is_set():
            try:
                lease = await begin_lease(self._client, config.ttl_s)
                self._life = Life(self._client, config, shards, lease, self.view, self.standing)
                await self._life.run(self._leaves)
            except (EtcdError, LeaseLost) as error:
                self._life = None
                pause_s = RETRY_S if isinstance(error, LeaseLost) else pause_s
                if isinstance(error, LeaseLost | EtcdUnreachable):
                    await self.standing.explain(str(error))
                else:
                    self.standing.note(str(error))
            finally:
                self._life = None
                self.view.wake()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s * random.uniform(0.5, 1.5)):
                    await self._leaves.wait()
            pause_s = min(RETRY_S_MAX, 2 * pause_s)
