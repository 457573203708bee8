"""The queue of deadlines against one that is too simple to be wrong."""

from __future__ import annotations

import random

import pytest

from rallypoint.server.core.state.deadlines import (
    DROPPED_MAX,
    DeadlineKey,
    DeadlineKind,
    Deadlines,
)


class DumbDeadlines:
    """All deadlines in one dict, searched for the first one."""

    def __init__(self) -> None:
        self.at: dict[DeadlineKey, int] = {}

    def set(self, key: DeadlineKey, at_ms: int | None) -> None:
        self.at.pop(key, None)
        if at_ms is not None:
            self.at[key] = at_ms

    def first(self) -> tuple[int, DeadlineKey] | None:
        return min(((at_ms, key) for key, at_ms in self.at.items()), default=None)


def test_empty_queue_has_nothing_due() -> None:
    """Without deadlines nothing is due, and dropping an absent deadline does nothing."""
    deadlines = Deadlines()
    deadlines.set((DeadlineKind.LEASE, "a"), None)

    assert (None, None) == (deadlines.first(), deadlines.get((DeadlineKind.LEASE, "a")))


def test_kind_breaks_ties() -> None:
    """Deadlines of the same millisecond are ordered by kind, then by subject."""
    deadlines = Deadlines()
    keys = [
        (DeadlineKind.STOP, "a"),
        (DeadlineKind.GRACE, "b"),
        (DeadlineKind.GRACE, "a"),
        (DeadlineKind.LEASE, "0"),
    ]
    for key in keys:
        deadlines.set(key, 7)

    due = []
    while (first := deadlines.first()) is not None:
        due.append(first[1])
        deadlines.set(first[1], None)

    assert sorted(keys) == due


def test_moving_later_costs_no_heap_entry() -> None:
    """A lease that a heartbeat renews a thousand times does not make the queue grow."""
    deadlines = Deadlines()
    key = (DeadlineKind.LEASE, "a")
    for now_ms in range(1_000):
        deadlines.set(key, now_ms + 5_000)

    assert 1 == len(deadlines._heap)
    assert (5_999, key) == deadlines.first()


def test_dropped_deadlines_take_no_room() -> None:
    """Even if they would have been due much later than the others."""
    deadlines = Deadlines()
    deadlines.set((DeadlineKind.LEASE, "a"), 5)
    for number in range(5 * DROPPED_MAX):
        deadlines.set((DeadlineKind.FORGET, str(number)), 86_400_000)
        deadlines.set((DeadlineKind.FORGET, str(number)), None)

    assert len(deadlines._heap) <= DROPPED_MAX + 4
    assert (5, (DeadlineKind.LEASE, "a")) == deadlines.first()


@pytest.mark.parametrize("seed", range(60))
def test_against_a_dumb_queue(seed: int) -> None:
    """After any sequence of operations both queues have the same deadlines and the same first."""
    chance = random.Random(seed)
    deadlines, dumb = Deadlines(), DumbDeadlines()
    keys = [(kind, name) for kind in list(DeadlineKind)[:4] for name in "abc"]
    for _ in range(300):
        key = chance.choice(keys)
        match chance.randrange(4):
            case 0 | 1:
                at_ms = chance.randrange(50)
                deadlines.set(key, at_ms)
                dumb.set(key, at_ms)
            case 2:
                deadlines.set(key, None)
                dumb.set(key, None)
            case _:
                assert dumb.first() == deadlines.first()
        assert dumb.at.get(key) == deadlines.get(key)

    assert dumb.at == dict(deadlines.items())
    assert dumb.first() == deadlines.first()
