"""A process that stood still knows it at its first look."""

from __future__ import annotations

from rallypoint.server.fleet.forwarding import STILL_S, WARY_S, Standstill


def test_looks_in_time() -> None:
    standstill = Standstill(10.0)
    assert not any(standstill.look(10.0 + n * STILL_S) for n in range(5))


def test_standstill_counts_for_a_moment() -> None:
    standstill = Standstill(10.0)
    thawed_s = 10.0 + STILL_S + 0.1
    assert standstill.look(thawed_s)
    assert standstill.look(thawed_s + WARY_S - 0.01), "also when it was looked at meanwhile"
    assert not standstill.look(thawed_s + WARY_S)


def test_second_standstill_begins_anew() -> None:
    standstill = Standstill(10.0)
    assert standstill.look(15.0)
    assert not standstill.look(15.0 + WARY_S)
    assert standstill.look(20.0)
