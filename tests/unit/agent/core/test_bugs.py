"""What the core does when the agent has found a bug in itself."""

from __future__ import annotations

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.reports import GoodbyeKind, GoodbyeReport, LeavingReport
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import step
from support.core.orders import run_order

FAILED = inputs.AgentFailed("ValueError: bad")
TEXT = "internal error: ValueError: bad"
EXIT_SOFTWARE = 70
RUNNING = (
    inputs.PortReserved(30_000),
    inputs.Welcomed(1),
    inputs.DesiredReceived(1, 1, run_order()),
    inputs.WorkerStarted(1, 0, 4_000),
    inputs.WorkerStarted(1, 1, 4_001),
)


def after(*happened: inputs.Input) -> tuple[AgentState, list[effects.Effect]]:
    """Return the state after these inputs, and the effects of the last one."""
    state = AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=0
    )
    done: tuple[effects.Effect, ...] = ()
    for one in happened:
        state, done = step(state, one, 1_000)
    return state, [one for one in done if not isinstance(one, effects.SendReports)]


def test_bug_stops_the_workers() -> None:
    """They get SIGTERM and the shutdown timeout, and the coordinator learns why at once."""
    state, done = after(*RUNNING, FAILED)

    assert done == [effects.SignalWorkers(15)]
    assert state.reports[-1] == LeavingReport(1, TEXT)
    assert state.held is not None and state.held.kill_ms == 31_000


def test_bug_ends_the_agent_without_workers() -> None:
    """It says Goodbye and exits at once."""
    state, done = after(*RUNNING[:2], FAILED)

    assert done == [effects.Exit(EXIT_SOFTWARE, TEXT)]
    assert state.reports[-1] == GoodbyeReport(GoodbyeKind.ERROR, TEXT)


def test_bug_does_not_change_a_decided_end() -> None:
    """An agent that is ending keeps its reason and its exit code."""
    before, _ = after(*RUNNING, inputs.SignalReceived(2))
    state, done = after(*RUNNING, inputs.SignalReceived(2), FAILED)

    assert done == []
    assert state == before
