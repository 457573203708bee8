"""What a lease is sure of: counted from before the question, if most members confirm it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rallypoint.server.etcd import lease
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import EtcdUnreachable
from rallypoint.server.etcd.lease import MARGIN_S, Lease, LeaseLost
from rallypoint.server.etcd.values import Granted, KeyValue, Ranged

ID = 7
TTL_S = 4
KEY = b"/p/live/members/me"


class Clock:
    def __init__(self) -> None:
        self.s = 1_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease, "now_s", lambda: clock.s)
    monkeypatch.setattr(lease, "RENEW_S", 0.0)
    return clock


class Etcd(EtcdClient):
    """Answers each renewal as a test wants; the clock runs meanwhile."""

    def __init__(self, clock: Clock, *answers: Callable[[], tuple[Granted, Ranged]]) -> None:
        self._clock = clock
        self._answers = list(answers)
        self._read: Ranged | None = None
        self.seen: list[float] = []

    async def keep_alive(
        self, lease: int, *, limit_s: float = 0, attempt_s: float | None = None
    ) -> Granted:
        if not self._answers:
            await asyncio.Event().wait()
        granted, self._read = self._answers.pop(0)()
        return granted

    async def range(self, key: bytes, end: bytes = b"", **_: object) -> Ranged:
        assert self._read is not None
        return self._read


def answer(
    clock: Clock,
    took_s: float,
    *,
    ttl_s: int = TTL_S,
    term: int = 1,
    read_term: int = 1,
    holder: int | None = ID,
    revision: int = 9,
) -> Callable[[], tuple[Granted, Ranged]]:
    def give() -> tuple[Granted, Ranged]:
        clock.s += took_s
        found = () if holder is None else (KeyValue(KEY, b"", 1, 1, holder),)
        return Granted(ID, ttl_s, term), Ranged(found, False, revision, read_term)

    return give


def fail(clock: Clock, took_s: float) -> Callable[[], tuple[Granted, Ranged]]:
    def give() -> tuple[Granted, Ranged]:
        clock.s += took_s
        raise EtcdUnreachable("etcd cannot be reached")

    return give


async def keep(etcd: Etcd, clock: Clock) -> tuple[float, str]:
    """Keep a lease until it is lost; return until when it was sure, and why it is lost."""
    held = Lease(etcd, Granted(ID, TTL_S, 1), clock.s)
    until_s = clock.s + held.left_s()
    with pytest.raises(LeaseLost) as caught:
        await held.keep(KEY)

    assert not held.is_sure()
    return until_s, str(caught.value)


async def test_lease_counts_from_before_the_question(clock: Clock) -> None:
    """An answer that takes long is worth less."""
    granted = Lease(Etcd(clock), Granted(ID, TTL_S, 1), clock.s)

    assert granted.left_s() == TTL_S - MARGIN_S
    clock.s += TTL_S - MARGIN_S
    assert not granted.is_sure()


@pytest.mark.parametrize(
    ("answers", "lost_at_s"),
    [
        ([answer], 1 + 3.5),
        ([answer, answer], 2 + 3.5),
        ([fail, answer], 2 + 3.5),
        ([answer, fail, fail], 1 + 3.5),
    ],
)
async def test_renewals_extend_it(
    clock: Clock,
    answers: list[Callable[[Clock, float], Callable[[], tuple[Granted, Ranged]]]],
    lost_at_s: float,
) -> None:
    """Each confirmed one, from the moment of its question; a failed one changes nothing."""
    held: list[Lease] = []
    looks: list[float] = []

    def look() -> tuple[Granted, Ranged]:
        looks.append(clock.s + held[0].left_s())
        clock.s += 100
        raise EtcdUnreachable("etcd cannot be reached")

    began_s = clock.s
    gives = [one(clock, 1.0) for one in answers]
    etcd = Etcd(clock, *gives, look)
    held.append(Lease(etcd, Granted(ID, TTL_S, 1), clock.s))
    with pytest.raises(LeaseLost, match="cannot be reached"):
        await held[0].keep(KEY)

    # Each answer took a second, so the last confirmed one was asked for a second before it came.
    assert looks == [pytest.approx(began_s + lost_at_s - 1)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ttl_s": 0}, "has ended"),
        ({"holder": None}, "deleted"),
        ({"holder": ID + 1}, "deleted"),
    ],
)
async def test_lease_that_has_ended_is_lost_at_once(
    clock: Clock, changes: dict[str, int], why: str
) -> None:
    began_s = clock.s
    until_s, text = await keep(Etcd(clock, answer(clock, 0.1, **changes)), clock)

    assert why in text
    assert clock.s < until_s and clock.s - began_s < 1


async def test_leader_of_an_earlier_term_confirms_nothing(clock: Clock) -> None:
    """It was cut off, and renews leases that another leader counts for itself."""
    renewals = [answer(clock, 1.0, term=1, read_term=2) for _ in range(9)]
    began_s = clock.s
    await keep(Etcd(clock, *renewals), clock)

    assert clock.s - began_s == 4.0, "after the fourth, 3.5 s are over"


async def test_process_that_stood_still_knows_at_once(clock: Clock) -> None:
    held = Lease(Etcd(clock), Granted(ID, TTL_S, 1), clock.s)
    clock.s += 60

    assert not held.is_sure()
    with pytest.raises(LeaseLost, match="stood still"):
        await held.keep(KEY)


async def test_older_state_of_etcd_ends_the_lease(clock: Clock) -> None:
    """A backup that is restored within the lease takes claims back that this process relies on."""
    etcd = Etcd(clock, answer(clock, 0.1, revision=9), answer(clock, 0.1, revision=8))
    held = Lease(etcd, Granted(ID, TTL_S, 1), clock.s)

    with pytest.raises(LeaseLost, match="a backup was restored"):
        await held.keep(KEY)
    assert not held.is_sure()
