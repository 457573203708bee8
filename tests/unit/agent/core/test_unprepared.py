"""A node that cannot start a round's workers says whether that can change.

One that cannot make the files of a round leaves the round, and is ready once it can.
"""

from __future__ import annotations

import pytest

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.desired import DesiredStop
from rallypoint.agent.core.reports import BlockedReport, ReadyReport, StartFailedReport
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import next_deadline_ms, step
from support.core.orders import run_order

TEXT = "No space left on device"
ORDERED = (
    inputs.PortReserved(30_000),
    inputs.Welcomed(1),
    inputs.DesiredReceived(1, 1, run_order()),
)
REFUSED = inputs.WorkersNotPrepared(1, TEXT)
CHECK = effects.ReservePort(checks_files=True)


def run(
    *happened: inputs.Input, now_ms: int = 1_000, state: AgentState | None = None
) -> tuple[AgentState, list[effects.Effect]]:
    """Return the state after some inputs, and the effects of the last one."""
    state = state or AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=0
    )
    done: tuple[effects.Effect, ...] = ()
    for one in happened:
        state, done = step(state, one, now_ms)
    return state, [one for one in done if not isinstance(one, effects.SendReports)]


def fail_again(state: AgentState, round: int, now_ms: int) -> tuple[AgentState, int]:
    """Let a round fail to be prepared, and the check pass; return how long the node paused."""
    order = inputs.DesiredReceived(1, round, run_order(number=round))
    refused = inputs.WorkersNotPrepared(round, TEXT)
    swept = inputs.Swept(state.sweep_token + 1)
    state, done = run(order, refused, swept, now_ms=now_ms, state=state)
    due_ms = next_deadline_ms(state)
    assert due_ms is not None and done == []
    state, done = run(inputs.TimePassed(), now_ms=due_ms, state=state)
    assert done == [CHECK]
    state, _ = run(inputs.PortReserved(30_000 + round), now_ms=due_ms, state=state)
    assert state.reports[-1] == ReadyReport(round, 30_000 + round)
    return state, due_ms - now_ms


def test_round_is_given_up_without_a_failure() -> None:
    """No worker is reported as failed; nothing is waited for, because nothing runs."""
    state, done = run(*ORDERED, REFUSED)

    assert state.reports[-1] == BlockedReport(1, (), TEXT)
    assert done == [effects.Sweep(1)]


def test_node_is_ready_once_files_can_be_made() -> None:
    """Before it reserves a port, it finds out; it retries with pauses, and then needs no check."""
    clean, _ = run(*ORDERED, REFUSED, inputs.Swept(1))
    state, done = run(inputs.TimePassed(), now_ms=1_100, state=clean)
    assert done == [CHECK]
    state, done = run(inputs.PortNotReserved(TEXT), now_ms=1_100, state=state)
    assert (done, next_deadline_ms(state)) == ([], 1_300)
    state, _ = run(inputs.TimePassed(), inputs.PortReserved(30_001), now_ms=1_300, state=state)

    assert state.reports[-1] == ReadyReport(1, 30_001)
    assert (state.held, state.unprepared, next_deadline_ms(state)) == (None, "", None)


def test_node_pauses_longer_until_a_round_was_prepared() -> None:
    """A check that passes proves little; the pauses begin again once all workers have started."""
    (state, _), pauses_ms = run(*ORDERED[:2]), list[int]()
    for number in range(1, 9):
        state, pause_ms = fail_again(state, number, 100_000 * number)
        pauses_ms.append(pause_ms)
    assert pauses_ms == [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]

    order = inputs.DesiredReceived(1, 9, run_order(number=9))
    started = [inputs.WorkerStarted(9, rank, 4_000 + rank) for rank in range(2)]
    ended = [inputs.WorkerEnded(9, rank, 0, None, None, "") for rank in range(2)]
    stopped = inputs.DesiredReceived(1, 10, DesiredStop(9, 30_000, "why"))
    swept, port = inputs.Swept(state.sweep_token + 1), inputs.PortReserved(30_009)
    state, _ = run(order, *started, stopped, *ended, swept, port, now_ms=900_000, state=state)
    assert fail_again(state, 11, 1_000_000)[1] == 100


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


@pytest.mark.parametrize(
    ("is_missing", "has_started", "expected"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_missing_program_is_permanent_if_it_never_ran(
    is_missing: bool, has_started: bool, expected: bool
) -> None:
    """What ran here once may be there again in a moment; memory may be free again."""
    state, _ = run(*ORDERED)
    if has_started:
        started = (inputs.WorkerStarted(1, rank, 100 + rank) for rank in range(2))
        stop = inputs.DesiredReceived(1, 2, DesiredStop(1, 30_000, "a failure"))
        again = inputs.DesiredReceived(1, 3, run_order(number=2))
        ends = (inputs.WorkerEnded(1, rank, 1, None, None, "") for rank in range(2))
        state, _ = run(
            *started, stop, *ends, inputs.Swept(1), inputs.PortReserved(30_001), again, state=state
        )
    number = 2 if has_started else 1

    state, _ = run(inputs.WorkerNotStarted(number, 0, TEXT, is_missing), state=state)

    assert state.reports[-1] == StartFailedReport(number, TEXT, expected)
