"""Owners of shards: in this process, recording what they are asked for; or each in a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from rallypoint.server.etcd.claims import Claim
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.values import Condition
from rallypoint.server.fleet.life import OwnershipConfig
from rallypoint.server.fleet.ownership import Ownership

SHARDS = 16
LIMIT_S = 30.0


class Served:
    """Serves shards by noting them."""

    def __init__(self) -> None:
        self.claims: dict[int, Claim] = {}
        self.asked: list[tuple[str, int]] = []
        self.refuses: set[int] = set()
        self.stops = asyncio.Event()
        self.stops.set()

    async def start(self, claim: Claim) -> None:
        self.asked.append(("start", claim.shard))
        if claim.shard in self.refuses:
            raise OSError("cannot be loaded")
        self.claims[claim.shard] = claim

    def halt(self, shard: int) -> None:
        self.asked.append(("halt", shard))
        self.claims.pop(shard, None)

    async def stop(self, shard: int) -> None:
        await self.stops.wait()
        self.asked.append(("stop", shard))

    def load_of(self, shard: int) -> int:
        return 0


class Owners:
    """Several owners on one event loop. Each has its own client."""

    def __init__(self, prefix: str, make: Callable[[], EtcdClient], ttl_s: int = 4) -> None:
        self._prefix = prefix
        self._make = make
        self._ttl_s = ttl_s
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.store: tuple[Condition, ...] = ()
        """What those who start from now on expect of the store."""
        self.served: list[Served] = []
        self.ownerships: list[Ownership] = []
        self.clients: list[EtcdClient] = []

    def start(self) -> int:
        """Start one more; return its number."""
        number = len(self.served)
        self.served.append(Served())
        self.clients.append(self._make())
        config = OwnershipConfig(self._prefix, f"h{number}:1", SHARDS, self._ttl_s, self.store)
        ownership = Ownership(self.clients[-1], self._prefix)
        self.ownerships.append(ownership)
        self._tasks[number] = asyncio.get_running_loop().create_task(
            ownership.run(config, self.served[-1])
        )
        return number

    @property
    def shares(self) -> list[int]:
        """How many shards each one serves and is sure of."""
        return [
            sum(ownership.owns(shard) for shard in served.claims)
            for ownership, served in zip(self.ownerships, self.served, strict=True)
        ]

    async def until(self, *shares: int) -> float:
        """Wait for these shares, in any order; return how long that took, in seconds."""
        return await self.until_true(lambda: sorted(self.shares) == sorted(shares))

    async def until_settled(self, *shares: int) -> None:
        """Wait for these shares, and until every owner knows of them: then none plans a change.

        One that counts its claims under way, and does not know yet that others were faster, may
        still release a shard.
        """
        await self.until_true(
            lambda: (
                sorted(self.shares) == sorted(shares)
                and all(len(ownership.view.owners) == SHARDS for ownership in self.ownerships)
            )
        )

    async def until_true(self, condition: Callable[[], bool]) -> float:
        """Wait for a condition that only time and etcd can make true."""
        began_s = time.monotonic()
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110  # etcd is the one that knows
                await asyncio.sleep(0.005)
        return time.monotonic() - began_s

    async def leave(self, number: int) -> float:
        """Let one leave; return how long that took, in seconds."""
        began_s = time.monotonic()
        self.ownerships[number].leave()
        await self._tasks.pop(number)
        return time.monotonic() - began_s

    async def end(self) -> None:
        """End all of them."""
        for task in self._tasks.values():
            task.cancel()
        for task in self._tasks.values():
            with suppress(asyncio.CancelledError):
                await task
