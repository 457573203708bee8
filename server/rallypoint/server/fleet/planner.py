"""Decides which shards a member claims and which it releases. Pure.

Each member plans for itself, from what etcd shows to all. From the same view, all plans agree: no
two members claim the same shard. From different views two may try; etcd lets one succeed.

A member's *quota* is the equal share, rounded up for the members that own most already, so as few
shards as possible move. A member above its quota releases shards, those with the least load first,
and a few at a time: agents of a shard that moves connect again. Members below their quota claim
what has no owner.

A member that could not serve a shard says so: it may be an older version. The shard is for the
others, unless they all refuse it: then they try again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct

SHARE_ON_THE_WAY = 8
"""A member releases no shard while this part of all shards, rounded up, has no owner."""
_NOTHING: Mapping[str, Collection[int]] = {}


class Plan(Struct, frozen=True):
    """What one member does next."""

    claims: tuple[int, ...] = ()
    """Shards without an owner, sorted."""
    releases: tuple[int, ...] = ()
    """Shards of the member, in the order of their release."""


def plan(
    me: str,
    members: Collection[str],
    owners: Mapping[int, str],
    count: int,
    loads: Mapping[int, int],
    refused: Mapping[str, Collection[int]] = _NOTHING,
) -> Plan:
    """Return what `me` does.

    Args:
        me: the member that plans.
        members: that take part; one that leaves is not among them.
        owners: of the shards that have one, whether it still takes part or not.
        count: number of shards.
        loads: of shards that `me` owns, in any unit; 0 for those that are missing.
        refused: shards that members could not serve.
    """
    mine = [shard for shard, owner in owners.items() if owner == me]
    if me not in members:
        return Plan(releases=tuple(sorted(mine)))
    held = Counter(owners.values())
    quotas = compute_quotas(members, held, count)
    free = sorted(set(range(count)) - owners.keys())
    claims = _assign(free, quotas, held, refused).get(me, ())
    on_the_way_max = -(-count // SHARE_ON_THE_WAY)
    excess = min(len(mine) - quotas[me], on_the_way_max - len(free))
    lacking = [member for member in members if held[member] < quotas[member]]
    wanted = [
        shard for shard in mine if any(shard not in refused.get(member, ()) for member in lacking)
    ]
    lightest = sorted(wanted, key=lambda shard: (loads.get(shard, 0), shard))
    return Plan(tuple(claims), tuple(lightest[: max(0, excess)]))


def compute_quotas(members: Collection[str], held: Mapping[str, int], count: int) -> dict[str, int]:
    """Return how many shards each member should own: their sum is `count`, and no two differ by 2.

    Args:
        members: that take part, at least one.
        held: number of shards that each owns; others may be among them.
        count: number of shards.
    """
    base, more = divmod(count, len(members))
    ranked = sorted(members, key=lambda member: (-held.get(member, 0), member))
    return {member: base + (at < more) for at, member in enumerate(ranked)}


def _assign(
    free: Collection[int],
    quotas: Mapping[str, int],
    held: Mapping[str, int],
    refused: Mapping[str, Collection[int]],
) -> dict[str, list[int]]:
    """Give shards without an owner to the members that lack most."""
    lacking = {member: quota - held.get(member, 0) for member, quota in quotas.items()}
    given: dict[str, list[int]] = {}
    for shard in free:
        able = [member for member in lacking if shard not in refused.get(member, ())]
        member = min(able or lacking, key=lambda one: (-lacking[one], one))
        lacking[member] -= 1
        given.setdefault(member, []).append(shard)
    return given
