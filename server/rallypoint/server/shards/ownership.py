"""Owns shards, one life after the other, until it is asked to leave.

One *life* is one lease: a member with a new id, its claims, and a view of all members. When it
ends, the next one begins with nothing, however the last one ended.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdError, EtcdUnreachable
from rallypoint.server.shards.lease import LeaseLost, begin_lease
from rallypoint.server.shards.life import Fact, Life, Shards
from rallypoint.server.shards.standing import Standing
from rallypoint.server.shards.view import View

RETRY_S, RETRY_S_MAX = 0.2, 2.0
"""Pause before the next life, doubled while they fail, with jitter."""


class Ownership:
    """The shards of this process."""

    def __init__(self, client: EtcdClient, fact: Fact, shards: Shards) -> None:
        """Own nothing yet; `run` does the work."""
        self._client = client
        self._fact = fact
        self._shards = shards
        self._leaves = asyncio.Event()
        self._life: Life | None = None
        self.view = View(fact.prefix)
        """What etcd shows, as far as it is known; it may be out of date."""
        self.standing = Standing(client, self.view.wake)
        """Why shards are not served."""

    def is_sure(self) -> bool:
        """Return whether nothing else can own what this process owns, at this moment."""
        return self._life is not None and self._life.lease.is_sure()

    def owns(self, shard: int) -> bool:
        """Return whether this process serves a shard, and is sure of it, at this moment."""
        return self.is_sure() and self._life is not None and shard in self._life.serving

    def owner_address(self, shard: int) -> str | None:
        """Return where the owner of a shard can be reached, as far as it is known."""
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

    async def run(self) -> None:
        """Own a share of the shards until `leave`, or until cancelled."""
        pause_s = RETRY_S
        while not self._leaves.is_set():
            try:
                lease = await begin_lease(self._client, self._fact.ttl_s)
                self._life = Life(
                    self._client, self._fact, self._shards, lease, self.view, self.standing
                )
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
