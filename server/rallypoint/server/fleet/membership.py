"""The key of a member: what this process tells the others about itself, as long as its lease.

Each write expects the revision of the one before. An attempt that arrives late, when another write
has succeeded since, changes nothing. A shard that could not be served is refused for a while only:
etcd may have been slow at that moment.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdOtherStore
from rallypoint.server.etcd.values import Condition, Get, Put, Target
from rallypoint.server.etcd.view import Member

REFUSED_FOR_S = 60.0
"""How long a shard that could not be served is left to the others."""
TRIES = 3
"""Writes in a row that may find another revision: attempts of earlier ones were carried out."""


class Membership:
    """The key of this process, written one change after another."""

    def __init__(
        self,
        client: EtcdClient,
        key: bytes,
        address: str,
        lease: int,
        store: tuple[Condition, ...] = (),
    ) -> None:
        """Write nothing yet.

        Args:
            client: of the cluster.
            key: of the member.
            address: `host:port` of this coordinator.
            lease: which the key ends with.
            store: what holds as long as the store is the one that was opened.
        """
        self.key = key
        self._client = client
        self._lease = lease
        self._store = store
        self._member = Member(address)
        self._revision = 0
        """Of the latest write; 0: there is no key yet."""
        self._written = b""
        """The latest value that is known to be written; empty: none is."""
        self._refused: dict[int, float] = {}
        """Shards that could not be served, and until when they are refused, in the loop's time."""
        self._turn = asyncio.Lock()
        """So that a write never replaces one that knows more."""

    async def join(self) -> None:
        """Write the key.

        Raises:
            EtcdOtherStore: when the store is not the one that was opened.
            EtcdError: when that is unknown.
        """
        async with self._turn:
            for _ in range(TRIES):
                if await self._write(msgspec.json.encode(self._member)):
                    return
            prefix = self.key.rpartition(b"/live/")[0].decode()
            raise EtcdOtherStore(
                f"etcd has lost or replaced what was under {prefix}: stop all coordinators,"
                " restore a backup, and start them again"
            )

    async def _write(self, value: bytes) -> bool:
        """Write the key if it is as this process knows it; else learn how it is."""
        put = Put(self.key, value, self._lease)
        is_known = Condition(self.key, Target.MODIFIED, self._revision)
        outcome = await self._client.transact([*self._store, is_known], [put], [Get(self.key)])
        if outcome.is_done:
            self._revision, self._written = outcome.revision, value
            return True
        pairs = outcome.found[0]
        self._revision, self._written = (pairs[0].modified, pairs[0].value) if pairs else (0, b"")
        return self._written == value  # an earlier attempt was carried out

    async def decline(self, shard: int) -> None:
        """Tell of a shard that could not be served.

        Raises:
            EtcdError: when that is unknown; the next call tells of it, too.
        """
        self._refused[shard] = asyncio.get_running_loop().time() + REFUSED_FOR_S
        await self._tell_refused()

    async def accept(self, shard: int) -> None:
        """Tell that a shard is served which could not be served before.

        Raises:
            EtcdError: when that is unknown; the next call tells of it, too.
        """
        if self._refused.pop(shard, None) is not None:
            await self._tell_refused()

    async def forgive(self) -> None:
        """Tell that shards which were refused for long enough can be tried again.

        Raises:
            EtcdError: when that is unknown; the next call tells of it, too.
        """
        now_s = asyncio.get_running_loop().time()
        self._refused = {shard: at_s for shard, at_s in self._refused.items() if at_s > now_s}
        await self._tell_refused()

    async def _tell_refused(self) -> None:
        self._member = replace(self._member, refused=tuple(sorted(self._refused)))
        if msgspec.json.encode(self._member) != self._written:
            await self.join()

    async def leave(self) -> None:
        """Tell that this process claims nothing more, and releases what it has.

        Raises:
            EtcdError: when that is unknown.
        """
        self._member = replace(self._member, is_leaving=True)
        await self.join()
