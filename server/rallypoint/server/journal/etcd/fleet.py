"""What all coordinators of a store share: its identity, its secret, and how many shards it has."""

from __future__ import annotations

import secrets

from msgspec import Struct

from rallypoint.base.log import get_logger
from rallypoint.server.core.model.shards import SHARDS_DEFAULT, SHARDS_MAX
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdError, EtcdOutOfSpace
from rallypoint.server.etcd.values import Condition, Get, KeyValue, Put, Target
from rallypoint.server.journal.etcd.layout import FORMAT, IMPORTING, newer
from rallypoint.server.journal.interface import JournalFailed, JournalUnreadable, StoreMismatch

log = get_logger()

SECRET_BYTES = 32
IDENTITY_BYTES = 16
NAMES = ("format", "identity", "secret", "shard_count")


class StoreAway(JournalFailed):
    """etcd cannot be used at the moment; later it may."""


class StoreIdentity(Struct, frozen=True):
    """What the first coordinator of a store has fixed for ever."""

    identity: str
    """32 hexadecimal digits: all coordinators of the store are one to their agents."""
    secret: bytes
    """32 random bytes, from which tokens are derived."""
    shard_count: int

    def conditions(self, prefix: str) -> tuple[Condition, ...]:
        """Return what holds in etcd as long as the store under `prefix` is this one."""
        _, identity_key, *_ = fleet_keys(prefix)
        return (Condition(identity_key, Target.VALUE, value=self.identity.encode()),)


async def open_fleet(client: EtcdClient, prefix: str, shards: int | None = None) -> StoreIdentity:
    """Return what was fixed; the first call fixes it.

    Args:
        client: of the cluster.
        prefix: of all keys.
        shards: number of shards, 1 to SHARDS_MAX; None: what is fixed, or the default.

    Raises:
        JournalUnreadable: when a newer version has made the store, or it is damaged.
        StoreMismatch: when `shards` is not the number that is fixed.
        StoreAway: when etcd cannot be used at the moment.
        JournalFailed: when it cannot be used for another reason.
    """
    if shards is not None and not 0 < shards <= SHARDS_MAX:
        raise JournalFailed(f"{shards} is not a valid number of shards (1 to {SHARDS_MAX})")
    values = (
        str(FORMAT),
        secrets.token_hex(IDENTITY_BYTES),
        secrets.token_hex(SECRET_BYTES),
        str(shards or SHARDS_DEFAULT),
    )
    keys = fleet_keys(prefix)
    gets = [Get(key) for key in keys]
    try:
        found = (await client.transact([], gets)).found
        if not any(found):
            outcome = await client.transact(
                [Condition(key, Target.CREATED, 0) for key in keys],
                [
                    *(Put(key, value.encode()) for key, value in zip(keys, values, strict=True)),
                    *gets,
                ],
                gets,
            )
            found = outcome.found
            if outcome.is_done:
                log.info("store_created", prefix=prefix)  # a wrong prefix shows itself like that
    except EtcdError as error:
        is_away = error.is_repeated or isinstance(error, EtcdOutOfSpace)
        raise (StoreAway if is_away else JournalFailed)(str(error)) from error
    fleet = _decode(found, prefix)
    if shards not in (None, fleet.shard_count):
        raise StoreMismatch(
            f"{prefix} has {fleet.shard_count} shards, which cannot change: leave --shards out,"
            " or give another prefix"
        )
    return fleet


def fleet_keys(prefix: str) -> list[bytes]:
    """Return the keys of what is fixed: format, identity, secret, number of shards."""
    return [f"{prefix}/{name}".encode() for name in NAMES]


async def read_fleet(client: EtcdClient, prefix: str) -> tuple[StoreIdentity | None, int]:
    """Return what was fixed, None when nothing was, and the revision of the store.

    Raises:
        JournalUnreadable: when a newer version has made the store, or it is damaged.
        EtcdError: when it cannot be read.
    """
    outcome = await client.transact([], [Get(key) for key in fleet_keys(prefix)])
    fleet = _decode(outcome.found, prefix) if any(outcome.found) else None
    return fleet, outcome.revision


def _decode(found: tuple[tuple[KeyValue, ...], ...], prefix: str) -> StoreIdentity:
    values = [pairs[0].value if pairs else b"" for pairs in found]
    format, identity, secret, shard_count = (value.decode("ascii", "replace") for value in values)
    if format == IMPORTING:
        raise JournalUnreadable(
            f"an import into {prefix} in etcd has not ended: wait for it, or repeat it"
        )
    if format.isdigit() and int(format) > FORMAT:
        raise JournalUnreadable(newer(int(format)))
    try:
        fleet = StoreIdentity(identity, bytes.fromhex(secret), int(shard_count))
        is_sound = (
            len(bytes.fromhex(identity)) == IDENTITY_BYTES and 0 < fleet.shard_count <= SHARDS_MAX
        )
    except ValueError:
        is_sound = False
    if not (is_sound and format == str(FORMAT) and len(fleet.secret) == SECRET_BYTES):
        raise JournalUnreadable(f"the keys under {prefix} in etcd are damaged: restore a backup")
    return fleet
