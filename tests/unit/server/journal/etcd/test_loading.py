"""How a new owner reads its journal: in few answers, none too large."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.server.etcd.claims import Claim, take
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.values import Put
from rallypoint.server.journal.etcd import reading
from rallypoint.server.journal.etcd.layout import batch_prefix
from rallypoint.server.journal.etcd.log import ShardLog
from rallypoint.server.journal.etcd.reading import PAGE_KEYS, PAGE_KEYS_MAX
from support.etcd.clients import Connect
from support.etcd.cluster import Cluster
from support.etcd.owned_shard import read_shard

SHARD = 3
BATCHES = 3 * PAGE_KEYS


async def filled(client: EtcdClient, prefix: str) -> Claim:
    """Return the claim of a shard whose journal has BATCHES batches."""
    claim = await take(client, prefix, SHARD, "one", (await client.grant(60)).lease)
    assert claim is not None
    log = ShardLog(client, prefix, claim)
    await log.open()
    for number in range(BATCHES):
        await log.append(b"batch %d" % number, 1)
    return claim


def note_limits(client: EtcdClient) -> list[int]:
    """Return a list that gets the limit of each read; 0: of a single key."""
    limits: list[int] = []
    endpoint = client.endpoints.current
    read = endpoint.keys.Range

    async def noted(request: Any, **named: Any) -> Any:
        limits.append(request.limit)
        return await read(request, **named)

    endpoint.keys.Range = noted
    return limits


async def test_small_journal_comes_in_one_answer(
    etcd: Cluster, connect: Connect, prefix: str
) -> None:
    """However many batches it has, up to a thousand: the jobs of the shard wait for it."""
    client = connect(etcd, prefix)
    claim = await filled(client, prefix)
    limits = note_limits(client)
    batches = await ShardLog(client, prefix, claim).open()

    assert [b"batch %d" % number for number in range(BATCHES)] == batches
    assert [0, PAGE_KEYS_MAX] == limits


async def test_large_journal_comes_in_pages(
    etcd: Cluster, connect: Connect, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first parts may be the large ones of a snapshot: no answer may exceed the channel."""
    client = connect(etcd, prefix)
    claim = await filled(client, prefix)
    limits = note_limits(client)
    monkeypatch.setattr(reading, "PAGE_BYTES", 4 * BATCHES)
    batches = await ShardLog(client, prefix, claim).open()

    assert [b"batch %d" % number for number in range(BATCHES)] == batches
    assert [0, PAGE_KEYS] == limits[:2]
    assert 4 <= len(limits)


async def test_what_the_head_does_not_name_is_not_read(
    etcd: Cluster, connect: Connect, prefix: str
) -> None:
    """Parts of a batch that was never finished may be as large as a journal."""
    client = connect(etcd, prefix)
    await filled(client, prefix)
    beyond = batch_prefix(prefix, SHARD, 0, BATCHES)
    await client.transact([], [Put(beyond + b"0000", b"unfinished")])
    found: list[bytes] = []
    read = client.range

    async def noted(*args: Any, **named: Any) -> Any:
        ranged = await read(*args, **named)
        found.extend(pair.value for pair in ranged.found)
        return ranged

    client.range = noted  # type: ignore[method-assign]
    batches = await read_shard(client, prefix, SHARD)

    assert BATCHES == len(batches)
    assert b"batch 0" in found
    assert b"unfinished" not in found
