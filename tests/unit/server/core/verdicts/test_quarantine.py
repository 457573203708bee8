"""How long a node stays in quarantine, and what it is afterwards."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.model.desired import DesiredStandby
from rallypoint.server.core.model.job import NodeHealth, WaitKind
from rallypoint.server.core.model.node import Eligibility
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.verdicts.health import (
    COOLDOWN_MS_MAX,
    compute_cooldown_ms,
    with_failure,
)
from support.core.coordinator import Bench
from support.core.fake_agents import JOB
from support.core.health import (
    COOLDOWN_MS,
    SICK,
    SPEC,
    WIDE,
    cordon,
    fail_again,
    with_spare,
)


@pytest.mark.parametrize(
    ("quarantines", "expected_ms"),
    [(0, 300_000), (1, 600_000), (2, 1_200_000), (8, 76_800_000), (9, COOLDOWN_MS_MAX)],
)
def test_cooldown_doubles_up_to_a_day(quarantines: int, expected_ms: int) -> None:
    """Each quarantine is twice as long as the one before, and none is longer than a day."""
    assert expected_ms == compute_cooldown_ms(JobSpec(), quarantines)
    assert COOLDOWN_MS_MAX == compute_cooldown_ms(JobSpec(), 10**9)


def test_a_longer_configured_cooldown_stays() -> None:
    """A configured cooldown of more than a day is kept, and it does not grow."""
    spec = JobSpec(quarantine_cooldown_ms=3 * COOLDOWN_MS_MAX)

    assert [3 * COOLDOWN_MS_MAX] * 2 == [compute_cooldown_ms(spec, count) for count in (0, 1)]


def test_a_quarantine_uses_up_its_failures() -> None:
    """The next quarantine needs as many failures again, and it is longer."""
    known = NodeHealth(SICK)
    for at_ms in (1, 2, 3):
        known = with_failure(known, SPEC, at_ms, "it failed")
    first = known
    for at_ms in (4, 5):
        known = with_failure(known, SPEC, at_ms, "it failed")
    second = with_failure(known, SPEC, 30_000, "again")

    assert ((), 3 + COOLDOWN_MS, 1) == (
        first.failures_ms,
        first.quarantined_until_ms,
        first.quarantines,
    )
    assert ((4, 5), 1) == (known.failures_ms, known.quarantines)
    assert (30_000 + 2 * COOLDOWN_MS, 2, "again") == (
        second.quarantined_until_ms,
        second.quarantines,
        second.reason,
    )


def test_end_of_the_cooldown_makes_a_spare() -> None:
    """While the round is full the node is a spare, like a new arrival, and is used again."""
    bench, a, b, c = with_spare()
    fail_again(bench, a, 3)

    bench.advance(COOLDOWN_MS - 1)
    assert Eligibility.QUARANTINED is a.known_node.eligibility
    bench.advance(1)
    assert (Eligibility.ELIGIBLE, DesiredStandby(spare=True)) == (
        a.known_node.eligibility,
        a.desired,
    )
    assert "quarantine_ended" in bench.events()

    c.goodbye()
    bench.obey()
    assert (["a", "b"], 0, 1) == (bench.order(), a.group_rank, b.group_rank)


def test_end_of_the_cooldown_is_growth() -> None:
    """A round below max_nodes takes the node back when its quarantine is over, not before."""
    bench = Bench(WIDE)
    a, b, _ = bench.run_round("a", "b", "c")
    fail_again(bench, b, 3)
    assert ["a", "c"] == bench.order()

    bench.advance(COOLDOWN_MS - 1)
    assert (Phase.RUNNING, None) == (bench.job().phase, bench.wait())
    bench.advance(1)
    assert WaitKind.GROWTH is bench.the_wait().kind
    bench.advance(WIDE.settle_time_ms)
    bench.obey()

    assert ["a", "c", "b"] == bench.order()
    assert RoundReason.GROWTH is bench.rounds()[-1].reason
    assert a.group_rank == 0


@pytest.mark.parametrize("late_ms", [0, 50])
def test_quarantine_ends_whatever_comes_first(late_ms: int) -> None:
    """A quarantine ends in time even when another node's health changes in the same step."""
    bench, a, _, _ = with_spare()
    fail_again(bench, a, 3)
    bench.advance(COOLDOWN_MS - 1)
    bench.now_ms += 1 + late_ms

    cordon(bench, "another")

    assert (Eligibility.ELIGIBLE, 1) == (
        a.known_node.eligibility,
        bench.events().count("quarantine_ended"),
    )


def test_nothing_is_due_after_the_last_quarantine() -> None:
    """The deadline is that of the next quarantine to end; after the last there is none."""
    bench, a, _, c = with_spare(replace(SPEC, quarantine_after=1, min_nodes=1))
    due = (DeadlineKind.QUARANTINE_END, JOB)
    assert bench.state.deadlines.get(due) is None
    fail_again(bench, a, 1)
    first_ms = bench.now_ms + COOLDOWN_MS
    bench.advance(1_000)
    fail_again(bench, c, 1)
    assert first_ms == bench.state.deadlines.get(due)

    bench.advance(COOLDOWN_MS - 1_000)
    assert first_ms + 1_000 == bench.state.deadlines.get(due)
    bench.advance(1_000)
    assert bench.state.deadlines.get(due) is None
