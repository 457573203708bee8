"""Takes and gives up shards: one key for each owner, which lives as long as its lease.

The revision at which the key was created is the fencing token: it only grows, and a transaction
that names it fails once the key is gone, whatever owns the shard since.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from rallypoint.server.etcd.client import CALL_LIMIT_S, EtcdClient
from rallypoint.server.etcd.values import Condition, Delete, Get, Put, Target


class Owner(Struct, frozen=True):
    """The value of an owner's key, as JSON."""

    member: str
    """Id of the member that owns the shard."""


class Claim(Struct, frozen=True):
    """A shard that this process owns until the key is gone."""

    shard: int
    key: bytes
    revision: int
    """At which the key was created: the fencing token."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What holds in etcd exactly as long as the shard is owned."""
        return (
            Condition(self.key, Target.CREATED, self.revision),
            Condition(self.key, Target.MODIFIED, self.revision),
        )


def owner_key(prefix: str, shard: int) -> bytes:
    """Return the key of the owner of a shard."""
    return f"{prefix}/live/owners/{shard:04d}".encode()


def member_key(prefix: str, member: str) -> bytes:
    """Return the key of a member."""
    return f"{prefix}/live/members/{member}".encode()


async def take(
    client: EtcdClient,
    prefix: str,
    shard: int,
    member: str,
    lease: int,
    store: tuple[Condition, ...] = (),
    *,
    limit_s: float = CALL_LIMIT_S,
) -> Claim | None:
    """Claim a shard that has no owner; return None when it has one, or the store is another.

    Args:
        client: of the cluster.
        prefix: of all keys.
        shard: its number.
        member: id of this process.
        lease: which the claim ends with.
        store: what holds as long as the store is the one that was opened.
        limit_s: of the call.

    Raises:
        EtcdError: when that is unknown. The claim may exist, now or later, up to the end of
            the lease.
    """
    key = owner_key(prefix, shard)
    value = msgspec.json.encode(Owner(member))
    outcome = await client.transact(
        [*store, Condition(key, Target.CREATED, 0)],
        [Put(key, value, lease)],
        [Get(key)],
        limit_s=limit_s,
    )
    if outcome.is_done:
        return Claim(shard, key, outcome.revision)
    (found,) = outcome.found
    if found and found[0].value == value and found[0].lease == lease:
        return Claim(shard, key, found[0].created)  # an attempt before this one
    return None


async def give_up(client: EtcdClient, claim: Claim, *, limit_s: float = CALL_LIMIT_S) -> int | None:
    """Release a shard; its journal takes nothing more under this claim.

    Returns: The revision at which it was released; None if the claim was gone before.

    Raises:
        EtcdError: when that is unknown. The claim ends with its lease.
    """
    outcome = await client.transact(claim.conditions, [Delete(claim.key)], limit_s=limit_s)
    return outcome.revision if outcome.is_done else None
