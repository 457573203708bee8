"""What a process tells the others about itself, when attempts arrive late or in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from rallypoint.server.etcd.errors import EtcdError, EtcdOtherStore
from rallypoint.server.etcd.values import Condition, Get, KeyValue, Operation, Outcome, Put, Target
from rallypoint.server.etcd.view import Member
from rallypoint.server.fleet import membership
from rallypoint.server.fleet.membership import Membership

KEY, MARK = b"/rp/live/members/a", b"/rp/mark"
STORE = (Condition(MARK, Target.CREATED, 1),)
Request = tuple[Sequence[Condition], Sequence[Operation], Sequence[Operation]]


class Store:
    """A client of a store in memory, whose attempts can come twice."""

    def __init__(self) -> None:
        self.revision = 1
        self.pairs = {MARK: KeyValue(MARK, b"x", 1, 1, 0)}
        self.requests: list[Request] = []

    async def transact(
        self,
        conditions: Sequence[Condition],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> Outcome:
        self.requests.append((conditions, then, otherwise))
        return self.carry_out(self.requests[-1])

    def carry_out(self, request: Request) -> Outcome:
        """Carry out an attempt of a request."""
        conditions, then, otherwise = request
        is_done = all(map(self._holds, conditions))
        found = []
        for operation in then if is_done else otherwise:
            if isinstance(operation, Put):
                self.revision += 1
                old = self.pairs.get(operation.key)
                created = self.revision if old is None else old.created
                self.pairs[operation.key] = KeyValue(
                    operation.key, operation.value, created, self.revision, operation.lease
                )
            elif isinstance(operation, Get):
                found.append(tuple(p for p in (self.pairs.get(operation.key),) if p is not None))
        return Outcome(is_done, self.revision, tuple(found))

    def _holds(self, condition: Condition) -> bool:
        pair = self.pairs.get(condition.key)
        if condition.target is Target.CREATED:
            return condition.number == (0 if pair is None else pair.created)
        return condition.number == (0 if pair is None else pair.modified)

    def member(self) -> Member:
        """Return what the others see."""
        return msgspec.json.decode(self.pairs[KEY].value, type=Member)


def joined() -> tuple[Store, Membership]:
    store = Store()
    return store, Membership(store, KEY, "host:1", 7, STORE)  # type: ignore[arg-type]  # a stand-in


async def test_late_attempt_undoes_nothing() -> None:
    """The first attempt to join arrives again when the process is leaving."""
    store, one = joined()
    await one.join()
    await one.leave()
    store.carry_out(store.requests[0])

    assert store.member().is_leaving


async def test_attempt_that_was_carried_out_counts() -> None:
    """Its answer was lost, so the next write finds another revision than it knows."""
    store, one = joined()
    await one.join()
    late = store.requests[0]
    one._revision = 0
    await one.join()
    await one.leave()
    store.carry_out(late)

    assert store.member().is_leaving


async def test_other_store_is_noticed() -> None:
    """What was there is gone, so nothing may be written."""
    store, one = joined()
    store.pairs.clear()

    with pytest.raises(EtcdOtherStore, match="lost or replaced"):
        await one.join()
    assert store.pairs == {}


async def test_shard_is_refused_until_it_is_served() -> None:
    """Only for as long as it cannot be."""
    store, one = joined()
    await one.decline(3)
    await one.decline(5)
    assert (3, 5) == store.member().refused
    await one.accept(3)

    assert (5,) == store.member().refused


async def test_refusal_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow moment of etcd does not keep a shard from a process for ever."""
    store, one = joined()
    await one.decline(3)
    await one.forgive()
    assert (3,) == store.member().refused
    now_s = asyncio.get_running_loop().time() + membership.REFUSED_FOR_S
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    await one.forgive()

    assert () == store.member().refused


@pytest.mark.parametrize("is_done", [False, True])
async def test_what_could_not_be_told_is_told_later(
    monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> None:
    """Once: whether or not the attempt, whose outcome is unknown, was carried out."""
    store, one = joined()
    await one.join()
    transact = store.transact

    async def fail(*request: Sequence[Operation]) -> Outcome:
        if is_done:
            await transact(*request)  # type: ignore[arg-type]  # passed on
        raise EtcdError("request timed out")

    for tell, refused in ((one.decline, (3,)), (one.accept, ())):
        monkeypatch.setattr(store, "transact", fail)
        with pytest.raises(EtcdError):
            await tell(3)
        monkeypatch.setattr(store, "transact", transact)
        await one.forgive()
        assert refused == store.member().refused
        told = len(store.requests)
        await one.forgive()

        assert told == len(store.requests)
