"""Times of day, for people."""

from __future__ import annotations

import pytest

from rallypoint.server.rpc.views import times

NOON_MS = 1_800_000_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The wall clock; nothing was measured yet."""
    wall = [NOON_MS]
    monkeypatch.setattr(times, "wall_ms", lambda: wall[0])
    times.begin_time()
    return wall


def shown(at_ms: int, now_ms: int) -> int:
    """Return the shown time in ms."""
    return times.to_timestamp(at_ms, now_ms).ToMilliseconds()


def test_event_is_shown_as_long_ago_as_it_was(clock: list[int]) -> None:
    """By the wall clock of now."""
    assert NOON_MS - 250 == shown(750, 1_000)
    assert times.to_optional_timestamp(None, 1_000) is None


def test_shown_time_does_not_change_by_itself(clock: list[int]) -> None:
    """An answer takes a while to write; the same event keeps its time."""
    first = shown(750, 1_000)
    clock[0] += 2_000 + times.DRIFT_MS_MAX

    assert first == shown(750, 3_000)


def test_what_was_before_a_stall_keeps_its_time(clock: list[int]) -> None:
    """Journal time leaves a stall out; only what happens afterwards is later by it."""
    before = shown(750, 1_000)
    clock[0] += 3_601_000  # an hour and a second, of which journal time sees the second
    times.note_time(2_000)

    assert before == shown(750, 2_000)
    assert clock[0] == shown(2_000, 2_000)


def test_clock_that_was_set_counts(clock: list[int]) -> None:
    """So does a stall, which journal time leaves out."""
    first = shown(750, 1_000)
    clock[0] += 60_000

    assert first + 60_000 == shown(750, 1_000)
