"""Milestones of workers: what an agent believes, and what it says of all its workers together."""

from __future__ import annotations

import pytest

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import DesiredStop
from rallypoint.agent.core.held_round import Milestone
from rallypoint.agent.core.reports import ReachedReport
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import step
from rallypoint.agent.session.translate import fill_snapshot, report_message
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.durations import to_ms
from support.core.orders import run_order

IMPORTED, GROUPED = Milestone.IMPORTED, Milestone.PROCESS_GROUP
STARTED_MS = 1_000


def running() -> AgentState:
    """Return an agent whose two workers started at 1 s."""
    state = AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=0
    )
    return after(
        state,
        (inputs.Welcomed(1), 0),
        (inputs.PortReserved(30_000), 0),
        (inputs.DesiredReceived(1, 1, run_order()), STARTED_MS),
        (inputs.WorkerStarted(1, 0, 4_000), STARTED_MS),
        (inputs.WorkerStarted(1, 1, 4_001), STARTED_MS),
    )


def after(state: AgentState, *happened: tuple[inputs.Input, int]) -> AgentState:
    for one, now_ms in happened:
        state, _ = step(state, one, now_ms)
    return state


def mark(
    rank: int, at_ms: int, milestone: Milestone = IMPORTED, *, round: int = 1
) -> inputs.MilestoneReached:
    return inputs.MilestoneReached(round, rank, milestone, at_ms)


def reached(state: AgentState) -> list[ReachedReport]:
    return [report for report in state.reports if isinstance(report, ReachedReport)]


def repeated(state: AgentState, now_ms: int) -> dict[int, int]:
    """Return what the next Hello says: the age of each milestone."""
    hello = agent_pb2.Hello()
    fill_snapshot(hello, state, now_ms)
    return {one.milestone: to_ms(one.age) for one in hello.held.milestones}


def test_last_worker_makes_the_report() -> None:
    """One for each milestone, with when the last worker reached it, in whatever order they come."""
    state = after(running(), (mark(1, 1_700), 1_710), (mark(1, 1_800, GROUPED), 1_810))
    assert [] == reached(state)
    state = after(state, (mark(0, 1_500), 1_900), (mark(0, 1_950, GROUPED), 1_960))

    reports = [ReachedReport(1, IMPORTED, 1_700), ReachedReport(1, GROUPED, 1_950)]
    assert reports == reached(state)
    message = report_message(reports[0], 2_000).reached
    assert (1, agent_pb2.MILESTONE_IMPORTED) == (message.round, message.milestones[0].milestone)
    assert 300 == to_ms(message.milestones[0].age)


def test_first_word_of_a_worker_counts() -> None:
    """It may repeat itself, before and after the report."""
    state = after(running(), (mark(0, 1_500), 1_500), (mark(0, 1_900), 1_900))
    state = after(state, (mark(1, 1_600), 1_950), (mark(1, 1_990), 2_000), (mark(0, 2_000), 2_000))

    assert [ReachedReport(1, IMPORTED, 1_600)] == reached(state)


@pytest.mark.parametrize(("said_ms", "known_ms"), [(0, STARTED_MS), (2**53, 1_500), (1_200, 1_200)])
def test_times_are_clamped(said_ms: int, known_ms: int) -> None:
    """Nothing is in the future, nor before the start of the worker."""
    state = after(running(), (mark(0, said_ms), 1_500), (mark(1, said_ms), 1_500))

    assert [known_ms] == [report.at_ms for report in reached(state)]


@pytest.mark.parametrize(
    "wrong", [mark(2, 1_500), mark(-1, 1_500), mark(9_999, 1_500), mark(0, 1_500, round=2)]
)
def test_what_is_about_no_worker_of_the_round_changes_nothing(
    wrong: inputs.MilestoneReached,
) -> None:
    """A worker may write anything."""
    before = running()

    assert before == after(before, (wrong, 1_500))
    idle = AgentState(2, shutdown_timeout_ms=1, coordinator_timeout_ms=1, away_since_ms=None)
    assert idle == after(idle, (mark(0, 0), 0))


def test_round_that_stops_reaches_nothing() -> None:
    """Its timeline is complete."""
    stop = inputs.DesiredReceived(1, 2, DesiredStop(1, 30_000, "why"))
    before = after(running(), (mark(0, 1_500), 1_500), (stop, 1_600))

    assert before == after(before, (mark(1, 1_700), 1_700))


def test_hello_repeats_what_all_workers_have_reached() -> None:
    """Also what was acknowledged: the coordinator does not journal it."""
    state = after(running(), (mark(0, 1_500), 1_500), (mark(0, 1_500, GROUPED), 1_500))
    assert {} == repeated(state, 1_600)
    state = after(state, (mark(1, 1_700), 1_700), (inputs.Acknowledged(99), 1_800))

    assert [] == reached(state)
    assert {agent_pb2.MILESTONE_IMPORTED: 800} == repeated(state, 2_500)
