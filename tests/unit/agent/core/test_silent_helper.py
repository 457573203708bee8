"""A helper that does not answer: a stop says that it waits for it."""

from __future__ import annotations

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import DesiredStop
from rallypoint.agent.core.reports import BlockedReport
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import step
from support.core.orders import run_order

RUNNING = (
    inputs.PortReserved(30_000),
    inputs.Welcomed(1),
    inputs.DesiredReceived(1, 1, run_order()),
    inputs.WorkerStarted(1, 0, 4_000),
    inputs.WorkerStarted(1, 1, 4_001),
)
STOP = inputs.DesiredReceived(1, 2, DesiredStop(1, 30_000, "why"))
SILENT = inputs.HelperSilent(7)
ANSWERED = inputs.HelperAnswered()
SAID = BlockedReport(1, (7,), "its helper process 7 does not answer")


def blocked(*happened: inputs.Input) -> list[BlockedReport]:
    """Return what an agent reports that keeps it."""
    state = AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=0
    )
    for one in happened:
        state, _ = step(state, one, 1_000)
    return [report for report in state.reports if isinstance(report, BlockedReport)]


def test_stop_says_that_it_waits_for_the_helper() -> None:
    """Whether the silence begins before the stop or after it."""
    assert blocked(*RUNNING, SILENT, STOP) == [SAID]
    assert blocked(*RUNNING, STOP, SILENT) == [SAID]


def test_silence_during_a_round_is_no_news() -> None:
    """The workers run; nothing waits for the helper."""
    assert blocked(*RUNNING, SILENT) == []


def test_helper_that_answers_again_keeps_nothing() -> None:
    """A later stop is like any other."""
    assert blocked(*RUNNING, SILENT, ANSWERED, STOP) == []


def test_stop_says_what_it_waits_for_once_the_helper_answers() -> None:
    """Its silence is no reason any more; a node without processes waits for none."""
    ended = BlockedReport(1, (), "its workers have not ended")
    assert blocked(*RUNNING, STOP, SILENT, ANSWERED) == [SAID, ended]
    assert blocked(*RUNNING, STOP, ANSWERED) == []
    ends = [inputs.WorkerEnded(1, rank, 0, None, None, "") for rank in range(2)]
    assert blocked(*RUNNING, STOP, SILENT, *ends, inputs.Swept(1), ANSWERED) == [SAID]
