"""Milestones that agents report for all their workers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Milestone, Timeline
from rallypoint.server.core.rounds import timelines
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, worker_exit
from support.core.rounds import pair

IMPORTED, GROUPED = Milestone.IMPORTED, Milestone.PROCESS_GROUP


def timeline(bench: Bench) -> Timeline:
    round = bench.job().round
    assert round is not None and round.timeline is not None
    return round.timeline


def come_back(agent: FakeAgent, *reached: tuple[Milestone, int]) -> None:
    """Let an agent say Hello to a coordinator that has started again."""
    held = replace(agent.held_round(), milestones=reached)
    assert agent.hello(held=held).refusal is None


def test_last_node_makes_the_mark() -> None:
    """The latest of their times; nodes that repeat themselves count once."""
    bench, a, b = pair(workers=4)
    bench.advance(1_000)
    a.reach(IMPORTED, 100)
    a.reach(IMPORTED)
    bench.advance(500)
    assert None is timeline(bench).imported_ms
    b.reach(IMPORTED, 900)
    made = timeline(bench)
    bench.advance(500)
    b.reach(IMPORTED)

    assert (bench.now_ms - 1_100, None) == (made.imported_ms, made.process_group_ms)
    assert made == timeline(bench)


def test_ages_are_clamped() -> None:
    """Nothing happened before the round was sealed."""
    bench, a, b = pair()
    bench.advance(1_000)
    for agent in (a, b):
        agent.reach(IMPORTED, 2**53 - 1)

    assert timeline(bench).sealed_ms == timeline(bench).imported_ms


def test_report_about_an_older_round_changes_nothing() -> None:
    """It may come late, and is acknowledged like any other."""
    bench, a, b = pair()
    a.fail(worker_exit(1))
    bench.obey()
    before = bench.job()
    for agent in (a, b):
        agent.reach(IMPORTED, round=1)

    assert before == bench.job()


def test_report_during_the_stop_changes_nothing() -> None:
    """The round is over."""
    bench, a, b = pair()
    a.reach(IMPORTED)
    a.fail(worker_exit(1))
    assert Phase.STOPPING is bench.job().phase
    b.reach(IMPORTED)

    assert None is timeline(bench).imported_ms


def test_spare_reaches_nothing() -> None:
    """A node without a place in the round cannot make its marks."""
    bench, *_ = pair()
    (spare,) = bench.join("c")
    before = bench.job()
    spare.reach(IMPORTED, round=1)

    assert before == bench.job()


def test_coordinator_that_starts_again_learns_it_from_the_agents() -> None:
    """Also when the last node reaches it only then; what was marked does not move."""
    bench, a, b = pair()
    for agent in (a, b):
        agent.reach(IMPORTED)
    before = timeline(bench)
    a.reach(GROUPED)
    bench.restart()
    come_back(a, (IMPORTED, 0), (GROUPED, 5_000))
    come_back(b, (IMPORTED, 0))
    assert before == timeline(bench)
    b.reach(GROUPED)

    assert replace(before, process_group_ms=bench.now_ms) == timeline(bench)


def test_mark_that_was_complete_while_no_coordinator_was_there() -> None:
    """Each agent says how long ago it was."""
    bench, a, b = pair()
    bench.advance(4_000)
    bench.restart()
    came_ms = bench.now_ms
    come_back(a, (IMPORTED, 3_000))
    come_back(b, (IMPORTED, 2_000))

    assert came_ms - 2_000 == timeline(bench).imported_ms


def test_very_large_round_has_no_milestones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of its workers would take too much memory."""
    monkeypatch.setattr(timelines, "WORKERS_MAX", 1)
    bench, a, b = pair()
    for agent in (a, b):
        agent.reach(IMPORTED)

    assert None is timeline(bench).imported_ms
