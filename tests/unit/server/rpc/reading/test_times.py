"""Times of day, for people."""

from __future__ import annotations

import pytest

from rallypoint.server.core.state.clocks import DISTANCES_MAX, DRIFT_MS_MAX, Clocks
from rallypoint.server.rpc.views import times

NOON_MS = 1_800_000_000_000


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """What a coordinator measures; it is noon, and nothing was measured yet."""
    monkeypatch.setattr(times, "wall_ms", lambda: NOON_MS)
    return Clocks()


def shown(at_ms: int, clocks: Clocks, now_ms: int) -> int:
    """Return the shown time in ms."""
    time = times.to_timestamp(at_ms, clocks, now_ms)
    assert time is not None
    return time.ToMilliseconds()


def test_event_is_shown_as_long_ago_as_it_was(clocks: Clocks) -> None:
    """By the wall clock of now."""
    assert NOON_MS - 250 == shown(750, clocks, 1_000)
    assert times.to_timestamp(None, clocks, 1_000) is None


def test_shown_time_does_not_change_by_itself(clocks: Clocks) -> None:
    """An answer takes a while to write; the same event keeps its time."""
    clocks.measure(1_000, NOON_MS)
    first = shown(750, clocks, 1_000)
    clocks.measure(3_000, NOON_MS + 2_000 + DRIFT_MS_MAX)

    assert first == shown(750, clocks, 3_000) == NOON_MS - 250


def test_what_was_before_a_stall_keeps_its_time(clocks: Clocks) -> None:
    """Journal time leaves a stall out; only what happens afterwards is later by it."""
    clocks.measure(1_000, NOON_MS)
    before, later_ms = shown(750, clocks, 1_000), NOON_MS + 3_601_000
    clocks.measure(2_000, later_ms)  # an hour and a second; journal time sees the second

    assert before == shown(750, clocks, 2_000)
    assert later_ms == shown(2_000, clocks, 2_000)


def test_clock_that_was_set_counts(clocks: Clocks) -> None:
    """So does a stall, which journal time leaves out."""
    clocks.measure(1_000, NOON_MS)
    first = shown(750, clocks, 1_000)
    clocks.measure(1_000, NOON_MS + 60_000)

    assert first + 60_000 == shown(750, clocks, 1_000)


def test_clock_that_was_set_back_at_once_leaves_nothing(clocks: Clocks) -> None:
    """A replay of the records leads to the same distances, whatever was measured in a moment."""
    clocks.measure(1_000, NOON_MS)
    clocks.measure(2_000, NOON_MS + 60_000)
    clocks.measure(2_000, NOON_MS + 1_000 + DRIFT_MS_MAX // 2)
    replayed = Clocks()
    for record in clocks.records():
        replayed.take(record)

    assert [1_000] == clocks.since_ms
    assert clocks == replayed


def test_oldest_distances_are_dropped(clocks: Clocks) -> None:
    """Before the oldest one that is left, it holds too."""
    for number in range(DISTANCES_MAX + 2):
        clocks.measure(number, NOON_MS + number * 10_000)

    assert DISTANCES_MAX == len(clocks.records())
    assert clocks.find(2) == clocks.find(0) == NOON_MS + 20_000 - 2
