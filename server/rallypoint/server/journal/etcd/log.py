"""The batches of one shard as bytes: appended, replaced and read, all or nothing.

Every write names the owner's claim and the revision at which the head was written last. So nothing
is written once the shard has another owner, and a write whose answer was lost happens at most once:
it is repeated, and the repetition either does it or finds that the head is the one it wanted to
write. A write that cannot be resolved within its limit ends this log: only its next life, which
changes the head first, learns what became of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from rallypoint.server.etcd.claims import Claim
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdCompacted, EtcdError
from rallypoint.server.etcd.values import (
    Condition,
    Delete,
    Get,
    KeyValue,
    Operation,
    Put,
    Target,
    prefix_end,
)
from rallypoint.server.journal.etcd.layout import (
    PART_BYTES,
    PARTS_MAX,
    Head,
    batch_prefix,
    batches_prefix,
    decode_head,
    generation_prefix,
    head_key,
    split,
)
from rallypoint.server.journal.etcd.reading import read_batches
from rallypoint.server.journal.interface import JournalFailed, JournalInUse

WRITE_LIMIT_S = 5.0
"""Longest wait for one transaction, over all attempts: an election fits in it."""
OPEN_TRIES_MAX = 5
"""A late write of the life before changes the head once."""
OPERATIONS_MAX = 64
"""Of one transaction; etcd takes 128."""


class ShardLost(JournalInUse):
    """Another coordinator owns the shard, or will."""


class ShardLog:
    """The batches of a shard, for its owner."""

    def __init__(self, client: EtcdClient, prefix: str, claim: Claim) -> None:
        """Prepare; `open` comes first.

        Args:
            client: of the cluster.
            prefix: of all keys.
            claim: of the shard.
        """
        self._client = client
        self._prefix = prefix
        self._claim = claim
        self._shard = claim.shard
        self._key = head_key(prefix, claim.shard)
        self._revision = 0
        self._broken: JournalFailed | None = None
        self.head = Head()

    async def open(self) -> list[bytes]:
        """Begin a life of the owner; return all batches.

        It writes a new head and deletes what no head names, so no write of an earlier life can
        succeed any more.

        Raises:
            ShardLost: when the shard has another owner.
            JournalUnreadable: when the journal is damaged or from a newer version.
            JournalFailed: when etcd cannot be read or written.
        """
        try:
            for _ in range(OPEN_TRIES_MAX):
                found = await self._client.get(self._key)
                if not await self._begin(found):
                    continue
                with suppress(EtcdCompacted):  # with much history, etcd compacts while this reads
                    return await read_batches(
                        self._client, self._prefix, self._shard, self.head, self._revision
                    )
        except EtcdError as error:
            raise JournalFailed(f"shard {self._shard} cannot be read: {error}") from error
        raise JournalFailed(f"shard {self._shard} changes all the time: see who writes to it")

    async def append(self, payload: bytes, records: int) -> None:
        """Add a batch; it is stored when this returns.

        Args:
            payload: of the batch.
            records: how many it holds.

        Raises:
            ShardLost: when the shard has another owner; nothing was written.
            JournalFailed: when the batch is not stored, or that is unknown.
        """
        head = self.head.extended(payload, records)
        batch = batch_prefix(self._prefix, self._shard, head.generation, self.head.next)
        *before, last = checked_parts(batch, payload)
        for key, value in before:
            await self._write([Put(key, value)])
        await self._write([Put(*last)], head)

    async def replace(self, payloads: Sequence[bytes], records: int) -> None:
        """Replace all batches; until the last transaction, the old ones stay.

        Args:
            payloads: of the new batches.
            records: how many they hold together.

        Raises:
            ShardLost: when the shard has another owner; nothing was replaced.
            JournalFailed: when they are not replaced, or that is unknown.
        """
        generation = self.head.generation + 1
        head = Head(life=self.head.life, generation=generation)
        puts: list[Put] = []
        for number, payload in enumerate(payloads):
            batch = batch_prefix(self._prefix, self._shard, generation, number)
            puts += [Put(*part) for part in checked_parts(batch, payload)]
            head = head.extended(payload, 0)
        head = msgspec.structs.replace(head, records=records)
        for group in grouped(puts):
            await self._write(group)
        all_before = Delete(
            batches_prefix(self._prefix, self._shard),
            generation_prefix(self._prefix, self._shard, generation),
        )
        await self._write([all_before], head)

    async def _begin(self, found: KeyValue | None) -> bool:
        """Write the head of a new life; return False when it has changed since it was read."""
        before = Head() if found is None else decode_head(found.value, self._shard)
        head = msgspec.structs.replace(before, life=secrets.token_hex(8))
        generation = generation_prefix(self._prefix, self._shard, head.generation)
        batches = batches_prefix(self._prefix, self._shard)
        self.head = before
        self._revision = 0 if found is None else found.modified
        leftovers: list[Operation] = [
            Delete(batches, generation),
            Delete(
                batch_prefix(self._prefix, self._shard, head.generation, head.next),
                prefix_end(batches),
            ),
        ]
        failure = await self._try(leftovers, head)
        if isinstance(failure, ShardLost):
            raise failure
        return failure is None

    async def _write(self, operations: Sequence[Operation], head: Head | None = None) -> None:
        """Do operations, with a new head if there is one; however it fails, it is the last."""
        if self._broken is not None:
            raise self._broken
        try:
            failure = await self._try(operations, head)
        except EtcdError as error:
            unknown = " the last decisions may be stored or not;"
            text = f"shard {self._shard}:{unknown if error.is_repeated else ''} {error}"
            self._broken = JournalFailed(text)
            raise self._broken from error
        except BaseException:
            # The caller was cancelled: the write may happen, now or later.
            self._broken = JournalFailed(f"shard {self._shard}: a write was interrupted")
            raise
        if failure is not None:
            self._broken = failure
            raise failure

    async def _try(
        self, operations: Sequence[Operation], head: Head | None
    ) -> JournalFailed | None:
        """Return None when the operations are done, else why they are not and never will be."""
        value = b"" if head is None else head.encode()
        then = [*operations, *(() if head is None else (Put(self._key, value),))]
        outcome = await self._client.transact(
            [*self._claim.conditions, Condition(self._key, Target.MODIFIED, self._revision)],
            then,
            [Get(self._claim.key), Get(self._key)],
            limit_s=WRITE_LIMIT_S,
        )
        if outcome.is_done:
            if head is not None:
                self.head, self._revision = head, outcome.revision
            return None
        owners, heads = outcome.found
        if not owners or owners[0].created != self._claim.revision:
            return ShardLost(f"shard {self._shard} has another owner")
        if head is not None and heads and heads[0].value == value:
            self.head, self._revision = head, heads[0].modified  # an attempt before this one
            return None
        return JournalFailed(f"shard {self._shard} was written by something else than its owner")


def checked_parts(batch: bytes, payload: bytes) -> list[tuple[bytes, bytes]]:
    """Return key and value of each part of a batch.

    Raises:
        JournalFailed: when it has too many.
    """
    if len(payload) > PARTS_MAX * PART_BYTES:
        raise JournalFailed(f"a batch of {len(payload)} bytes is too large for etcd")
    return list(split(batch, payload))


def grouped(puts: Iterable[Put]) -> Iterable[list[Put]]:
    """Yield the operations of each transaction: none is too long or too large."""
    group: list[Put] = []
    size = 0
    for put in puts:
        if group and (len(group) == OPERATIONS_MAX or size + len(put.value) > PART_BYTES):
            yield group
            group, size = [], 0
        group.append(put)
        size += len(put.value)
    if group:
        yield group
