"""The client of etcd in a coordinator's process: calls that take time, and get lost on the way.

It makes attempts as `EtcdClient` does. An attempt whose answer is lost may be carried out, later
even than the attempt after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rallypoint.server.etcd.client import ATTEMPT_LIMIT_S, CALL_LIMIT_S, PAUSE_S
from rallypoint.server.etcd.errors import EtcdError, EtcdTimedOut, EtcdUnreachable
from rallypoint.server.etcd.survey import ANSWER_LIMIT_S
from rallypoint.server.etcd.values import (
    Change,
    Condition,
    Granted,
    KeyValue,
    Operation,
    Outcome,
    Ranged,
)
from rallypoint.server.etcd.watch import SILENT_S, Seen

if TYPE_CHECKING:
    from rallypoint.server.etcd.claims import Claim
    from sim.shards.member import Member

PREFIX = "/rallypoint"
LATE_SHARE = 0.3
"""Of the attempts that get lost: those that arrive when etcd can be reached again."""
SILENT_MS = int(SILENT_S * 1000)
_GONE = "etcd cannot be reached: see that its members run"


class Address:
    """The part of an `EtcdAddress` that a journal asks for."""

    prefix = PREFIX


class SimClient:
    """A connection to the cluster."""

    address = Address()

    def __init__(self, member: Member, claim: Claim | None = None) -> None:
        self.member = member
        self.claim = claim
        """Of the shard that it writes for."""

    async def get(self, key: bytes, *, limit_s: float = CALL_LIMIT_S) -> KeyValue | None:
        ranged = await self.range(key, limit_s=limit_s)
        return ranged.found[0] if ranged.found else None

    async def range(
        self,
        key: bytes,
        end: bytes = b"",
        *,
        revision: int = 0,
        limit: int = 0,
        keys_only: bool = False,
        limit_s: float = CALL_LIMIT_S,
        attempt_s: float | None = None,
    ) -> Ranged:
        etcd = self.member.fleet.etcd
        read = partial(etcd.range, key, end, revision, limit, keys_only=keys_only)
        found: Ranged = await self._call(read, limit_s, attempt_s)
        return found

    async def transact(
        self,
        conditions: Sequence[Condition],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
        *,
        limit_s: float = CALL_LIMIT_S,
    ) -> Outcome:
        fleet, asked_ms = self.member.fleet, self.member.fleet.world.clock.now_ms

        def commit() -> Outcome:
            return fleet.transact(self, asked_ms, conditions, then, otherwise)

        outcome: Outcome = await self._call(commit, limit_s)
        return outcome

    async def grant(self, ttl_s: int, *, limit_s: float = CALL_LIMIT_S) -> Granted:
        granted: Granted = await self._call(partial(self.member.fleet.grant, ttl_s), limit_s)
        return granted

    async def keep_alive(
        self, lease: int, *, limit_s: float = CALL_LIMIT_S, attempt_s: float | None = None
    ) -> Granted:
        renew = partial(self.member.fleet.renew, self.member, lease)
        granted: Granted = await self._call(renew, limit_s, attempt_s)
        return granted

    async def revoke(self, lease: int, *, limit_s: float = CALL_LIMIT_S) -> None:
        await self._call(partial(self.member.fleet.revoke, lease), limit_s)

    # --- attempts ---

    async def _call(
        self, do: Callable[[], Any], limit_s: float, attempt_s: float | None = None
    ) -> Any:
        """Make attempts until one is answered, or the time is over."""
        if self.member.fleet.is_instant:
            return do()
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + limit_s
        attempts = 0
        while True:
            longest_s = attempt_s or ATTEMPT_LIMIT_S * 2 ** min(attempts // 3, 8)
            try:
                return await self._attempt(do, min(longest_s, max(0.01, ends_s - loop.time())))
            except EtcdError as error:
                attempts += 1
                if not error.is_repeated or loop.time() + PAUSE_S >= ends_s:
                    raise
                await asyncio.sleep(PAUSE_S)

    async def _attempt(self, do: Callable[[], Any], timeout_s: float) -> Any:
        fleet = self.member.fleet
        if fleet.is_over:
            raise EtcdUnreachable(_GONE)
        future = asyncio.get_running_loop().create_future()
        fleet.world.clock.after(fleet.latency_ms(), partial(self._arrive, do, future))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise EtcdTimedOut(_GONE) from error

    def _arrive(self, do: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        fleet = self.member.fleet
        if fleet.is_over:
            return
        clear_ms = fleet.cut_until_ms(self.member)
        if clear_ms > fleet.world.clock.now_ms:
            if fleet.rng.random() < LATE_SHARE:
                fleet.world.clock.at(clear_ms, partial(self._arrive, do, future))
            return
        try:
            answer = do()
        except EtcdError as error:
            answer = error
        if not self.member.loses_answer():
            fleet.world.clock.after(fleet.latency_ms(), partial(self._answer, future, answer))

    def _answer(self, future: asyncio.Future[Any], answer: Any) -> None:
        fleet, loop = self.member.fleet, self.member.loop
        is_cut = fleet.cut_until_ms(self.member) > fleet.world.clock.now_ms
        if not (fleet.is_over or is_cut or loop.is_dead):
            loop.call_soon(_resolve, future, answer)


def _resolve(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, EtcdError):
        future.set_exception(answer)
    else:
        future.set_result(answer)


async def find_alarm(client: SimClient) -> str:
    """Return why etcd takes no change although it answers."""
    alarm: str = await client._call(lambda: "", ANSWER_LIMIT_S)
    return alarm


async def watch(client: SimClient, key: bytes, end: bytes, from_revision: int, seen: Seen) -> None:
    """Call `seen` with every change, until the watch breaks; changes may take long to arrive.

    Raises:
        EtcdCompacted: when `from_revision` has been compacted away.
        EtcdTimedOut: when the watch is broken.
    """
    fleet, loop = client.member.fleet, asyncio.get_running_loop()
    if fleet.is_over or fleet.cut_until_ms(client.member) > fleet.world.clock.now_ms:
        await asyncio.sleep(SILENT_S)
        raise EtcdTimedOut("the watch does not answer")
    broken = loop.create_future()
    clear_ms = 0

    def arrive(changes: tuple[Change, ...]) -> None:
        if not broken.done():
            loop.call_soon(seen, changes)

    def changed(changes: tuple[Change, ...]) -> None:
        nonlocal clear_ms
        clock = fleet.world.clock
        if fleet.cut_until_ms(client.member) > clock.now_ms:
            stop()  # it learns that later
            return
        clear_ms = max(clear_ms, clock.now_ms + fleet.watch_ms())
        clock.at(clear_ms, partial(arrive, changes))

    watcher = fleet.etcd.watch(key, from_revision, changed)

    def break_it() -> None:
        loop.call_soon(_resolve, broken, None)

    def stop() -> None:
        if watcher in fleet.etcd.watchers:
            fleet.etcd.watchers.remove(watcher)
            delay_ms = fleet.rng.randint(0, SILENT_MS)
            fleet.world.clock.after(delay_ms, break_it)

    client.member.watch_stops = stop
    try:
        await broken
    finally:
        if watcher in fleet.etcd.watchers:
            fleet.etcd.watchers.remove(watcher)
    raise EtcdTimedOut("the watch does not answer")
