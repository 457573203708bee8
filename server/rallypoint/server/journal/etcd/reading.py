"""Reads the batches of a shard as of one revision, and checks that they are what was written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdCompacted, EtcdError
from rallypoint.server.etcd.values import KeyValue
from rallypoint.server.journal.etcd.fleet import StoreIdentity, read_fleet
from rallypoint.server.journal.etcd.layout import (
    PART_BYTES,
    Head,
    batch_prefix,
    chain,
    decode_head,
    generation_prefix,
    head_key,
)
from rallypoint.server.journal.interface import JournalFailed, JournalUnreadable

PAGE_BYTES = 16 * 1024 * 1024
"""About what one answer may bring; the channel takes four times as much."""
PAGE_KEYS = PAGE_BYTES // PART_BYTES
PAGE_KEYS_MAX = 1_000
PAGE_LIMIT_S = 10.0
READ_TRIES_MAX = 5


async def read_batches(
    client: EtcdClient, prefix: str, shard: int, head: Head, revision: int
) -> list[bytes]:
    """Return the payload of every batch that `head` names, oldest first.

    Args:
        client: of the cluster.
        prefix: of all keys.
        shard: its number.
        head: as of `revision`.
        revision: of the store.

    Raises:
        JournalUnreadable: when a batch is missing, or is not what was written.
        EtcdError: when they cannot be read.
    """
    parts: dict[bytes, list[bytes]] = {}
    begin = generation_prefix(prefix, shard, head.generation)
    end = batch_prefix(prefix, shard, head.generation, head.next)
    async for pair in _read_pairs(client, begin, end, revision, head.size):
        parts.setdefault(pair.key.rpartition(b"/")[0], []).append(pair.value)
    batches, digest = [], ""
    for number in range(head.next):
        batch = batch_prefix(prefix, shard, head.generation, number)
        found = parts.get(batch.rstrip(b"/"))
        if found is None:
            raise JournalUnreadable(f"shard {shard} in etcd lacks a batch: restore a backup")
        batches.append(b"".join(found))
        digest = chain(digest, batches[-1])
    if digest != head.digest:
        raise JournalUnreadable(f"shard {shard} in etcd is damaged: restore a backup")
    return batches


async def _read_pairs(
    client: EtcdClient, key: bytes, end: bytes, revision: int, size: int
) -> AsyncIterator[KeyValue]:
    """Yield the keys from `key` up to `end`, whose values have `size` bytes together."""
    # What fits in one answer needs no small pages first: each costs a round through etcd, while the
    # jobs of a shard that moves wait.
    limit = PAGE_KEYS_MAX if size <= PAGE_BYTES else PAGE_KEYS
    while True:
        page = await client.range(key, end, revision=revision, limit=limit, limit_s=PAGE_LIMIT_S)
        for pair in page.found:
            yield pair
        if not page.has_more:
            return
        key = page.found[-1].key + b"\0"
        mean = sum(len(pair.value) for pair in page.found) // len(page.found) + 1
        limit = max(PAGE_KEYS, min(PAGE_BYTES // mean, 2 * limit, PAGE_KEYS_MAX))


async def read_store(
    client: EtcdClient, prefix: str, choose: Callable[[int], Collection[int]]
) -> tuple[StoreIdentity, tuple[tuple[bytes, ...], ...]]:
    """Return what all shards share, and the batches of each, as of one revision.

    It writes nothing, and may run beside the owners.

    Args:
        client: of the cluster.
        prefix: of all keys.
        choose: returns the shards to read, of so many; the others have no batches here.

    Raises:
        JournalUnreadable: when the store is damaged, or a newer version has written it.
        JournalFailed: when there is none, or it cannot be read.
    """
    try:
        for _ in range(READ_TRIES_MAX):
            fleet, revision = await read_fleet(client, prefix)
            if fleet is None:
                raise JournalFailed(
                    f"etcd has no journal under {prefix}; a coordinator makes it when it starts"
                )
            wanted = choose(fleet.shard_count)
            with suppress(EtcdCompacted):  # with much history, etcd compacts while this reads
                return fleet, tuple(
                    [
                        tuple(await _read_as_of(client, prefix, shard, revision))
                        if shard in wanted
                        else ()
                        for shard in range(fleet.shard_count)
                    ]
                )
    except EtcdError as error:
        raise JournalFailed(str(error)) from error
    raise JournalFailed("etcd compacts faster than the journal can be read: try again")


async def _read_as_of(client: EtcdClient, prefix: str, shard: int, revision: int) -> list[bytes]:
    """Return all batches of a shard as of a revision."""
    found = await client.range(head_key(prefix, shard), revision=revision)
    if not found.found:
        return []
    head = decode_head(found.found[0].value, shard)
    return await read_batches(client, prefix, shard, head, revision)
