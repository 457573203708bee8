"""Whether workers make progress: what an agent reports of it, and what its Hello repeats."""

from __future__ import annotations

import pytest

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import DesiredStop
from rallypoint.agent.core.inputs import ProgressSeen
from rallypoint.agent.core.reports import ProgressReport
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import step
from rallypoint.agent.session.translate import fill_snapshot, report_message
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.durations import to_ms
from support.core.orders import run_order

STILL = ProgressSeen(1, 5_000)
MOVES = ProgressSeen(1, None)
STOP = inputs.DesiredReceived(1, 2, DesiredStop(1, 30_000, "why"))


def after(state: AgentState, *happened: inputs.Input, now_ms: int = 9_000) -> AgentState:
    for one in happened:
        state, _ = step(state, one, now_ms)
    return state


def running() -> AgentState:
    """Return an agent with two workers."""
    state = AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=0
    )
    return after(
        state,
        inputs.Welcomed(1),
        inputs.PortReserved(30_000),
        inputs.DesiredReceived(1, 1, run_order()),
        inputs.WorkerStarted(1, 0, 4_000),
        inputs.WorkerStarted(1, 1, 4_001),
        now_ms=1_000,
    )


def ended(rank: int) -> inputs.WorkerEnded:
    return inputs.WorkerEnded(1, rank, 0, None, None, "")


def reported(state: AgentState) -> list[int | None]:
    """Return what the reports say, in order."""
    return [one.still_since_ms for one in state.reports if isinstance(one, ProgressReport)]


def held(state: AgentState, now_ms: int) -> agent_pb2.HeldRound:
    """Return what the next Hello says."""
    hello = agent_pb2.Hello()
    fill_snapshot(hello, state, now_ms)
    return hello.held


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([MOVES], []),
        ([STILL], [5_000]),
        ([STILL, STILL, ProgressSeen(1, 6_000)], [5_000]),
        ([STILL, MOVES, MOVES, ProgressSeen(1, 8_000)], [5_000, None, 8_000]),
        ([ProgressSeen(2, 5_000)], []),
        ([ended(0), STILL], [5_000]),
        ([ended(0), ended(1), STILL], []),
        ([STOP, STILL], []),
        ([STILL, STOP, MOVES], [5_000]),
    ],
)
def test_reports(seen: list[inputs.Input], expected: list[int | None]) -> None:
    """Only news of the running round is reported."""
    assert expected == reported(after(running(), *seen))


def test_node_without_a_round_reports_nothing() -> None:
    """A look may end after its round."""
    idle = AgentState(2, shutdown_timeout_ms=1, coordinator_timeout_ms=1, away_since_ms=None)

    assert idle == after(idle, STILL)


def test_message_has_the_age_at_its_sending() -> None:
    """It may wait for a session."""
    still = report_message(ProgressReport(1, 5_000), 12_500).progress
    moves = report_message(ProgressReport(1, None), 12_500).progress

    assert (1, 7_500) == (still.round, to_ms(still.still_for))
    assert 1 == moves.round and not moves.HasField("still_for")


@pytest.mark.parametrize(
    ("seen", "still_ms"),
    [
        ([], None),
        ([STILL], 15_000),
        ([STILL, inputs.Acknowledged(99)], 15_000),
        ([STILL, ended(0)], 15_000),
        ([STILL, MOVES], None),
        ([STILL, ended(0), ended(1)], None),
        ([STILL, STOP], None),
    ],
)
def test_hello_repeats_it(seen: list[inputs.Input], still_ms: int | None) -> None:
    """A coordinator that has started again learns it; a stop, or success, forgets it."""
    said = held(after(running(), *seen), 20_000)

    assert said.HasField("still_for") == (still_ms is not None)
    assert to_ms(said.still_for) == (still_ms or 0)


def test_reports_do_not_pile_up_without_a_session() -> None:
    """The last word replaces the one before; the Hello says the same."""
    away = after(running(), STILL, inputs.Disconnected())
    for _ in range(100):
        away = after(away, MOVES, STILL)

    assert [5_000] == reported(away)
    assert [None] == reported(after(away, MOVES))
    again = after(away, MOVES, inputs.Welcomed(1), STILL)
    assert [None, 5_000] == reported(again)
