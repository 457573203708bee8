"""Milestones that agents report for all their workers, beside those that workers report."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Milestone, Timeline
from rallypoint.server.core.rounds import timelines
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, worker_exit
from support.core.rounds import pair

IMPORTED, GROUPED = Milestone.IMPORTED, Milestone.PROCESS_GROUP


def reach(agent: FakeAgent, ago_ms: int = 0, milestone: Milestone = IMPORTED) -> None:
    """Let an agent report that all its workers have reached a milestone."""
    reached = ((milestone, ago_ms),)
    agent.report(lambda sender: inputs.Reached(sender, agent.last_round, reached))


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
    reach(a, 100)
    reach(a)
    bench.advance(500)
    assert None is timeline(bench).imported_ms
    reach(b, 900)
    made = timeline(bench)
    bench.advance(500)
    reach(b)

    assert (bench.now_ms - 1_100, None) == (made.imported_ms, made.process_group_ms)
    assert made == timeline(bench)


@pytest.mark.parametrize("is_first", [True, False])
def test_workers_may_report_beside_agents(is_first: bool) -> None:
    """The workers of one node report for themselves, before or after the agent of the other."""
    bench, a, _ = pair(workers=2)
    job = bench.job()
    claim = inputs.Claim(job.job_id, job.run, job.round_number, "token", is_signed=True)
    if is_first:
        reach(a)
    for rank in (2, 3):
        assert None is timeline(bench).imported_ms
        bench.take(inputs.Progressed(claim, 0, 0, rank, 4, ((IMPORTED, 0),)))
    if not is_first:
        reach(a)

    assert bench.now_ms == timeline(bench).imported_ms


def test_ages_are_clamped() -> None:
    """Nothing happened before the round was sealed."""
    bench, a, b = pair()
    bench.advance(1_000)
    for agent in (a, b):
        reach(agent, 2**53 - 1)

    assert timeline(bench).sealed_ms == timeline(bench).imported_ms


def test_report_about_an_older_round_changes_nothing() -> None:
    """It may come late, and is acknowledged like any other."""
    bench, a, b = pair()
    a.fail(worker_exit(1))
    bench.obey()
    before = bench.job()
    for agent in (a, b):
        agent.report(lambda sender: inputs.Reached(sender, 1, ((IMPORTED, 0),)))

    assert before == bench.job()


def test_report_during_the_stop_changes_nothing() -> None:
    """As with those of workers: the round is over."""
    bench, a, b = pair()
    reach(a)
    a.fail(worker_exit(1))
    assert Phase.STOPPING is bench.job().phase
    reach(b)

    assert None is timeline(bench).imported_ms


def test_spare_reaches_nothing() -> None:
    """A node without a place in the round cannot make its marks."""
    bench, *_ = pair()
    (spare,) = bench.join("c")
    before = bench.job()
    spare.report(lambda sender: inputs.Reached(sender, 1, ((IMPORTED, 0),)))

    assert before == bench.job()


def test_coordinator_that_starts_again_learns_it_from_the_agents() -> None:
    """Also when the last node reaches it only then; what was marked does not move."""
    bench, a, b = pair()
    for agent in (a, b):
        reach(agent)
    before = timeline(bench)
    reach(a, milestone=GROUPED)
    bench.restart()
    come_back(a, (IMPORTED, 0), (GROUPED, 5_000))
    come_back(b, (IMPORTED, 0))
    assert before == timeline(bench)
    reach(b, milestone=GROUPED)

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
        reach(agent)

    assert None is timeline(bench).imported_ms
