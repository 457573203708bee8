"""Fills a store that does not exist yet: all of it or nothing.

The format says that an import is at work, and no coordinator starts on the store, until the last
transaction. Every write is conditional on that mark, and each import makes its own: a later import
takes over what another one has left, which writes nothing any more.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import msgspec

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdError
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
from rallypoint.server.etcd.view import Member
from rallypoint.server.journal.codec.batches import decode_batch
from rallypoint.server.journal.etcd.fleet import StoreIdentity, fleet_keys
from rallypoint.server.journal.etcd.layout import (
    FORMAT,
    IMPORTING,
    Head,
    batch_prefix,
    head_key,
)
from rallypoint.server.journal.etcd.log import WRITE_LIMIT_S, checked_parts, grouped
from rallypoint.server.journal.interface import JournalFailed, JournalInUse

_NAMED_MAX = 3
"""Coordinators that a message names."""


async def fill_store(
    client: EtcdClient, prefix: str, fleet: StoreIdentity, journals: Sequence[Sequence[bytes]]
) -> None:
    """Write a whole store where there is none yet.

    Args:
        client: of the cluster.
        prefix: of all keys.
        fleet: what all shards share.
        journals: the batches of each shard.

    Raises:
        JournalInUse: when coordinators run on the prefix.
        JournalFailed: when there is a journal, or etcd refuses.
    """
    try:
        filling = await _begin(client, prefix)
        for shard, payloads in enumerate(journals):
            await filling.write(shard, payloads)
        await _refuse_members(client, prefix)  # such as those whose keys someone has deleted
        await filling.finish(fleet)
    except EtcdError as error:
        raise JournalFailed(str(error)) from error


async def _begin(client: EtcdClient, prefix: str) -> _Filling:
    """Mark the prefix as being filled, and delete what an import before has left."""
    everything = f"{prefix}/".encode()
    format_key = fleet_keys(prefix)[0]
    await _refuse_members(client, prefix)
    known = await client.get(format_key)
    if known is None or known.value != IMPORTING.encode():
        found = await client.range(everything, prefix_end(everything), limit=1, keys_only=True)
        if known is not None:
            raise JournalFailed(
                f"etcd has a journal under {prefix} already; import into another prefix, or "
                f"delete it: etcdctl del --prefix {prefix}/"
            )
        if found.found:  # such as another store, not to be deleted for this one
            key = found.found[0].key.decode("utf-8", "replace")
            raise JournalFailed(
                f"etcd has other keys under {prefix} already, such as {key}: import into another "
                "prefix"
            )
    token = secrets.token_hex(8).encode()
    import_key = f"{prefix}/import".encode()
    outcome = await client.transact(
        [Condition(format_key, Target.MODIFIED, 0 if known is None else known.modified)],
        [Put(format_key, IMPORTING.encode()), Put(import_key, token)],
        [Get(format_key), Get(import_key)],
        limit_s=WRITE_LIMIT_S,
    )
    revision = outcome.revision
    if not outcome.is_done:
        formats, tokens = outcome.found
        if not tokens or tokens[0].value != token:
            raise _overtaken(prefix)
        revision = formats[0].modified  # an attempt before this one
    filling = _Filling(client, prefix, token, revision)
    shards = f"{prefix}/shards/".encode()
    await filling.do([Delete(shards, prefix_end(shards))])
    return filling


async def _refuse_members(client: EtcdClient, prefix: str) -> None:
    begin = f"{prefix}/live/".encode()
    found = (await client.range(begin, prefix_end(begin))).found
    if found:
        names = ", ".join(_addresses(found)) or "a command"
        raise JournalInUse(
            f"coordinators run on {prefix} in etcd ({names}): stop them, or import into another "
            "prefix"
        )


def _addresses(found: Sequence[KeyValue]) -> Iterator[str]:
    """Yield the addresses of some members."""
    members = [pair.value for pair in found if b"/live/members/" in pair.key]
    for value in members[:_NAMED_MAX]:
        try:
            address = msgspec.json.decode(value, type=Member).address
        except msgspec.MsgspecError:
            continue  # it is there, whatever it is
        if address:
            yield address
    if len(members) > _NAMED_MAX:
        yield "…"


class _Filling:
    """An import under way."""

    def __init__(self, client: EtcdClient, prefix: str, token: bytes, revision: int) -> None:
        """Write under the mark that was made at a revision."""
        self._client = client
        self._prefix = prefix
        self._token = token
        self._format_key = fleet_keys(prefix)[0]
        self._mark = Condition(self._format_key, Target.MODIFIED, revision)

    async def do(self, operations: Sequence[Operation]) -> None:
        """Do operations that may come twice."""
        outcome = await self._client.transact([self._mark], operations, limit_s=WRITE_LIMIT_S)
        if not outcome.is_done:
            raise _overtaken(self._prefix)

    async def write(self, shard: int, payloads: Sequence[bytes]) -> None:
        """Write the batches of a shard, and their head."""
        if not payloads:
            return
        head, puts = Head(), list[Put]()
        for number, payload in enumerate(payloads):
            batch = batch_prefix(self._prefix, shard, 0, number)
            puts += [Put(*part) for part in checked_parts(batch, payload)]
            head = head.extended(payload, len(decode_batch(payload).records))
        for group in grouped(puts):
            await self.do(group)
        await self.do([Put(head_key(self._prefix, shard), head.encode())])

    async def finish(self, fleet: StoreIdentity) -> None:
        """Make the store one that coordinators start on."""
        values = (str(FORMAT), fleet.identity, fleet.secret.hex(), str(fleet.shard_count))
        puts = [
            Put(key, value.encode())
            for key, value in zip(fleet_keys(self._prefix), values, strict=True)
        ]
        outcome = await self._client.transact(
            [self._mark],
            puts,
            [Get(self._format_key), Get(f"{self._prefix}/import".encode())],
            limit_s=WRITE_LIMIT_S,
        )
        if outcome.is_done:
            return
        formats, tokens = outcome.found
        is_ours = bool(tokens) and tokens[0].value == self._token
        if not (is_ours and formats and formats[0].value == puts[0].value):
            raise _overtaken(self._prefix)  # else an attempt before this one has done it


def _overtaken(prefix: str) -> JournalFailed:
    return JournalFailed(
        f"something else has written to {prefix} in etcd meanwhile, such as another import: see "
        "what, and repeat this one"
    )
