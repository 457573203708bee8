"""A node that cannot make the files of a round leaves the round, and is ready once it can."""

from __future__ import annotations

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.desired import DesiredStop
from rallypoint.agent.core.reports import BlockedReport, ReadyReport
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import step
from support.core.orders import run_order

TEXT = "No space left on device"
ORDERED = (
    inputs.PortReserved(30_000),
    inputs.Welcomed(1),
    inputs.DesiredReceived(1, 1, run_order()),
)
REFUSED = inputs.WorkersNotPrepared(1, TEXT)
CHECK = effects.ReservePort(checks_files=True)


def run(*happened: inputs.Input) -> tuple[AgentState, list[effects.Effect]]:
    """Return the state after some inputs, and the effects of the last one."""
    state = AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=0
    )
    done: tuple[effects.Effect, ...] = ()
    for one in happened:
        state, done = step(state, one, 1_000)
    return state, [one for one in done if not isinstance(one, effects.SendReports)]


def test_round_is_given_up_without_a_failure() -> None:
    """No worker is reported as failed; nothing is waited for, because nothing runs."""
    state, done = run(*ORDERED, REFUSED)

    assert state.reports[-1] == BlockedReport(1, (), TEXT)
    assert done == [effects.Sweep(1)]


def test_node_is_ready_once_files_can_be_made() -> None:
    """Before it reserves a port, it finds out; it retries with pauses, and then needs no check."""
    clean = (*ORDERED, REFUSED, inputs.Swept(1))
    assert run(*clean)[1] == [CHECK]
    state, done = run(*clean, inputs.PortNotReserved(TEXT))
    assert (done, state.port_wait is not None) == ([], True)
    state, _ = run(*clean, inputs.PortNotReserved(TEXT), inputs.PortReserved(30_001))

    assert state.reports[-1] == ReadyReport(1, 30_001)
    assert (state.held, state.unprepared) == (None, "")


def test_refusal_during_a_stop_ends_the_round_at_once() -> None:
    """The stop does not wait for workers that never started."""
    stop = inputs.DesiredReceived(1, 2, DesiredStop(1, 30_000, "why"))
    state, done = run(*ORDERED, stop, REFUSED)

    assert not any(isinstance(report, BlockedReport) for report in state.reports)
    assert done == [effects.Sweep(1)]


def test_refusal_of_an_older_round_is_ignored() -> None:
    """The node holds another one, or none."""
    before, _ = run(*ORDERED)
    after, done = run(*ORDERED, inputs.WorkersNotPrepared(7, TEXT))

    assert (after, done) == (before, [])
