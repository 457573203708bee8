"""The key of a member: what this process tells the others about itself, as long as its lease."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdOtherStore
from rallypoint.server.etcd.values import Condition, Put
from rallypoint.server.shards.view import Member


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
        self._turn = asyncio.Lock()
        """So that a write never replaces one that knows more."""

    async def join(self) -> None:
        """Write the key.

        Raises:
            EtcdOtherStore: when the store is not the one that was opened.
            EtcdError: when that is unknown.
        """
        async with self._turn:
            put = Put(self.key, msgspec.json.encode(self._member), self._lease)
            if not (await self._client.transact(self._store, [put])).is_done:
                prefix = self.key.rpartition(b"/live/")[0].decode()
                raise EtcdOtherStore(
                    f"etcd has lost or replaced what was under {prefix}: stop all coordinators,"
                    " restore a backup, and start them again"
                )

    async def decline(self, shard: int) -> None:
        """Tell of a shard that could not be served.

        Raises:
            EtcdError: when that is unknown; the next write tells of it, too.
        """
        refused = {*self._member.refused, shard}
        self._member = replace(self._member, refused=tuple(sorted(refused)))
        await self.join()

    async def leave(self) -> None:
        """Tell that this process claims nothing more, and releases what it has.

        Raises:
            EtcdError: when that is unknown.
        """
        self._member = replace(self._member, is_leaving=True)
        await self.join()
