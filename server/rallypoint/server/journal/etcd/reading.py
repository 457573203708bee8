"""Reads the batches of a shard as of one revision, and checks that they are what was written."""

from __future__ import annotations

from collections.abc import AsyncIterator

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.values import KeyValue, prefix_end
from rallypoint.server.journal.etcd.layout import (
    PART_BYTES,
    Head,
    batch_prefix,
    chain,
    generation_prefix,
)
from rallypoint.server.journal.interface import JournalUnreadable

PAGE_BYTES = 16 * 1024 * 1024
"""About what one answer may bring; the channel takes four times as much."""
PAGE_KEYS = PAGE_BYTES // PART_BYTES
PAGE_KEYS_MAX = 1_000
PAGE_LIMIT_S = 10.0


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
    async for pair in _read_pairs(
        client, generation_prefix(prefix, shard, head.generation), revision
    ):
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


async def _read_pairs(client: EtcdClient, prefix: bytes, revision: int) -> AsyncIterator[KeyValue]:
    key, end, limit = prefix, prefix_end(prefix), PAGE_KEYS
    while True:
        page = await client.range(key, end, revision=revision, limit=limit, limit_s=PAGE_LIMIT_S)
        for pair in page.found:
            yield pair
        if not page.has_more:
            return
        key = page.found[-1].key + b"\0"
        mean = sum(len(pair.value) for pair in page.found) // len(page.found) + 1
        limit = max(PAGE_KEYS, min(PAGE_BYTES // mean, 2 * limit, PAGE_KEYS_MAX))
