"""The lease of a coordinator, and until when it may be sure that it has not ended.

etcd counts a lease from the moment at which its leader takes a renewal; this process counts from
the moment before it asks, and stops MARGIN_S earlier. So while both clocks run equally fast to one
part in ten, it knows of the end before anything else can see it. The clock counts while the machine
is suspended, and `is_sure` looks at it whenever it is asked: a process that was frozen knows at its
first step that it is too late.

A leader that was cut off renews leases until it notices, while another leader is elected and counts
them for itself. So a renewal counts only if a read that most members have confirmed afterwards
finds the member's key, in the same term. A revision that is lower than before means that a backup
was restored under this process: then nothing that it knows counts.
"""

from __future__ import annotations

import asyncio
import time

from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import NO_ANSWER, EtcdError
from rallypoint.server.etcd.values import Granted

TTL_S = 4
"""Default. A shard of a dead owner moves 3.5 to 5 s later; an election of etcd takes 1 to 2.5 s."""
RENEW_S = 0.5
"""Pause between renewals."""
ATTEMPT_S = 0.5
"""Limit of each attempt: an endpoint may be suspended, or wait for a leader that is."""
LATE_S = 1.2
"""A renewal that takes longer may fail: time to find out why."""
MARGIN_S = 0.5
"""How long before the end of the lease an owner stops being sure."""


class LeaseLost(Exception):
    """The lease has ended, or may have."""


def now_s() -> float:
    """Return the time since the start of the machine, also while it was suspended, in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """A lease, and until when it is certain."""

    def __init__(self, client: EtcdClient, granted: Granted, asked_s: float) -> None:
        """Take over a lease.

        Args:
            client: of the cluster.
            granted: the lease.
            asked_s: when it was asked for, by `now_s`.
        """
        self.id = granted.lease
        self._client = client
        self._sure_s = granted.ttl_s - MARGIN_S
        self._sure_until_s = asked_s + self._sure_s
        self._revision = 0
        """Of the latest read."""

    def is_sure(self) -> bool:
        """Return whether nothing else can own a shard of this lease."""
        return now_s() < self._sure_until_s

    def left_s(self) -> float:
        """Return for how long it is sure, if nothing renews it; negative when it is not."""
        return self._sure_until_s - now_s()

    def is_late(self) -> bool:
        """Return whether a renewal takes longer than it should."""
        return self.left_s() < self._sure_s - LATE_S

    async def keep(self, key: bytes) -> None:
        """Renew the lease until that fails.

        Args:
            key: which lives as long as the lease.

        Raises:
            LeaseLost: when the lease has ended, or is not sure any more.
        """
        try:
            await self._keep(key)
        finally:
            self._sure_until_s = 0.0  # of the machine's start: never

    async def _keep(self, key: bytes) -> None:
        failed = "this process stood still"
        while (left_s := self.left_s()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._renew(key, left_s)
            except EtcdError as error:
                failed = str(error)
            except TimeoutError:
                failed = NO_ANSWER
            await asyncio.sleep(max(0.0, min(RENEW_S, self.left_s())))
        raise LeaseLost(failed)

    async def _renew(self, key: bytes, limit_s: float) -> None:
        asked_s = now_s()
        renewed = await self._client.keep_alive(self.id, limit_s=limit_s, attempt_s=ATTEMPT_S)
        if renewed.ttl_s <= 0:
            raise LeaseLost("the lease in etcd has ended")
        read = await self._client.range(key, limit_s=limit_s, attempt_s=ATTEMPT_S)
        if not read.found or read.found[0].lease != self.id:
            raise LeaseLost("something has deleted the key of this coordinator in etcd")
        if read.revision < self._revision:
            raise LeaseLost("etcd has an older state than before: a backup was restored")
        self._revision = read.revision
        if read.term == renewed.term:
            self._sure_until_s = asked_s + renewed.ttl_s - MARGIN_S


async def begin_lease(client: EtcdClient, ttl_s: int) -> Lease:
    """Get a lease.

    Raises:
        EtcdError: when etcd grants none.
    """
    asked_s = now_s()
    return Lease(client, await client.grant(ttl_s), asked_s)
