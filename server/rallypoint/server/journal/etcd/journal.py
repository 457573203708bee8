"""The journal of one shard in etcd, for the coordinator that owns the shard.

etcd answers a write when most of its members have it on their disks. So what `append` has stored
survives the loss of any coordinator and of fewer than half of the members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.etcd.claims import Claim
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.journal.codec.batches import (
    Batch,
    decode_batch,
    encode_batch,
    encode_snapshot,
)
from rallypoint.server.journal.etcd.fleet import StoreIdentity
from rallypoint.server.journal.etcd.log import ShardLog
from rallypoint.server.journal.interface import JournalFailed, Loaded

INLINE_MAX = 100
"""Records that are encoded at once, in about a millisecond; more are encoded in a thread."""


class EtcdJournal:
    """The records of one shard."""

    is_durable = True

    def __init__(
        self,
        client: EtcdClient,
        fleet: StoreIdentity,
        claim: Claim,
        unix_ms: Callable[[], int],
        release: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare; `load` comes first.

        Args:
            client: of the cluster; its address has the prefix.
            fleet: what all coordinators share.
            claim: of the shard.
            unix_ms: the wall clock, as Unix time.
            release: what `close` calls last; None: client and claim have another owner.
        """
        self.identity = fleet.identity
        self.secret = fleet.secret
        self._shards = fleet.shard_count
        self._log = ShardLog(client, client.address.prefix, claim)
        self._unix_ms = unix_ms
        self._release = release
        self._turn = asyncio.Lock()
        """One write after another, in the order of the calls."""
        self._writes: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def length(self) -> int:
        """Number of records that `load` would return."""
        return self._log.head.records

    @property
    def size(self) -> int:
        """Bytes that they take."""
        return self._log.head.size

    async def load(self) -> Loaded:
        """Return all records, and end every earlier life of this shard's owner.

        Raises:
            ShardLost: when the shard has another owner.
            JournalUnreadable: when a record cannot be read.
            JournalFailed: when etcd cannot be read or written.
        """
        payloads = await self._log.open()
        batches, records = await asyncio.to_thread(_decode_all, payloads)
        return Loaded(
            records=records,
            now_ms=batches[-1].now_ms if batches else 0,
            unix_ms=batches[-1].unix_ms if batches else 0,
            shards=self._shards,
        )

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Add a batch.

        Raises:
            ShardLost: when the shard has another owner; nothing was written.
            JournalFailed: when the batch is not stored, or that is unknown.
        """
        unix_ms = self._unix_ms()
        if len(records) <= INLINE_MAX:
            payload = encode_batch(records, now_ms, unix_ms)
        else:
            payload = await asyncio.to_thread(encode_batch, records, now_ms, unix_ms)
        await self._finish(self._log.append(payload, len(records)))

    async def compact(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Replace all records.

        Raises:
            ShardLost: when the shard has another owner; nothing was replaced.
            JournalFailed: when they are not replaced, or that is unknown.
        """
        unix_ms = self._unix_ms()
        payloads = await asyncio.to_thread(_encode, records, now_ms, unix_ms)
        await self._finish(self._log.replace(payloads, len(records)))

    async def close(self) -> None:
        """Wait for what is being written; take nothing more."""
        self._is_closed = True
        if self._writes:
            await asyncio.wait(self._writes)
        if self._release is not None:
            release, self._release = self._release, None
            await release()

    async def _finish(self, write: Coroutine[Any, Any, None]) -> None:
        """Do a write in its turn, also if the caller is cancelled: half of it helps nothing."""
        if self._is_closed:
            write.close()
            raise JournalFailed("the journal is closed")
        # A task of the loop, not of a group: it outlives its caller, and `close` waits for it.
        task = asyncio.get_running_loop().create_task(self._in_turn(write))
        self._writes.add(task)
        task.add_done_callback(self._forget)
        await asyncio.shield(task)

    async def _in_turn(self, write: Coroutine[Any, Any, None]) -> None:
        async with self._turn:
            await write

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        if not task.cancelled():
            task.exception()  # the log keeps it for the next caller, if this one has gone


def _encode(records: Sequence[JournalRecord], now_ms: int, unix_ms: int) -> list[bytes]:
    return list(encode_snapshot(records, now_ms, unix_ms))


def _decode_all(payloads: Sequence[bytes]) -> tuple[list[Batch], tuple[JournalRecord, ...]]:
    batches = [decode_batch(payload) for payload in payloads]
    return batches, tuple(record for batch in batches for record in batch.records)
