"""A running worker that recorded an error: what its agent reports, and what becomes of its exit."""

from __future__ import annotations

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import DesiredStop
from rallypoint.agent.core.held_round import ErrorRecord, Stage
from rallypoint.agent.core.reports import (
    ExitedReport,
    RecordedReport,
    Report,
    StartedReport,
    SucceededReport,
)
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import next_deadline_ms, step
from rallypoint.agent.session.translate import fill_snapshot, report_message
from rallypoint.agent.torchelastic.last_round import has_failed
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import node_pb2
from support.core.orders import run_order

STOP = inputs.DesiredReceived(1, 2, DesiredStop(1, 30_000, "why"))


def running() -> AgentState:
    """Return an agent whose two workers started at 1 s."""
    state = AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=None
    )
    return after(
        state,
        (inputs.PortReserved(30_000), 0),
        (inputs.DesiredReceived(1, 1, run_order()), 1_000),
        (inputs.WorkerStarted(1, 0, 4_000), 1_000),
        (inputs.WorkerStarted(1, 1, 4_001), 1_000),
    )


def after(state: AgentState, *happened: tuple[inputs.Input, int]) -> AgentState:
    for one, at_ms in happened:
        state, _ = step(state, one, at_ms)
    return state


def found(age_ms: int = 100, *, round: int = 1, at_ms: int | None = None) -> inputs.WorkerRecorded:
    """Return the discovery of an error that worker 0 recorded so long before."""
    error = ErrorRecord("ValueError: bad", "", age_ms)
    return inputs.WorkerRecorded(round, 0, error, "", at_ms, error_file="/logs/error.json")


def ended(
    exit_code: int | None, error: ErrorRecord | None = None, *, signalled_ms: int | None = None
) -> inputs.WorkerEnded:
    signum = 15 if exit_code is None else None
    return inputs.WorkerEnded(1, 0, exit_code, signum, error, "", signalled_ms=signalled_ms)


def told(state: AgentState) -> list[Report]:
    """Return the reports about the ends of workers."""
    kinds = (RecordedReport, ExitedReport, SucceededReport)
    return [report for report in state.reports if isinstance(report, kinds)]


def stage(state: AgentState) -> Stage:
    assert state.held is not None
    return state.held.stage


def test_record_is_reported_while_the_worker_runs() -> None:
    """The node has failed; the message has the error and its age, and neither code nor signal."""
    state = after(running(), (found(100, at_ms=2_950), 3_000))

    (report,) = told(state)
    message = report_message(report, 3_200).recorded
    (worker,) = message.workers
    assert Stage.FAILED is stage(state)
    assert (1, 0, node_pb2.WORKER_STATE_RUNNING) == (message.round, worker.local_rank, worker.state)
    assert not worker.exit.HasField("exit_code") and not worker.exit.HasField("signal")
    assert (250, 100) == (
        worker.exit.age.ToMilliseconds(),
        worker.exit.error.age_at_exit.ToMilliseconds(),
    )
    assert "/logs/error.json" == worker.exit.error_file


def test_exit_keeps_the_first_error() -> None:
    """The exit has the error that was found first, with its age, whatever the file holds now."""
    late = ErrorRecord("ValueError: of the clean-up", "", 10)
    state = after(
        running(),
        (found(100), 3_000),
        (STOP, 3_200),
        (ended(None, late, signalled_ms=3_200), 4_000),
    )

    report = told(state)[-1]
    assert isinstance(report, ExitedReport) and report.worker.exit is not None
    assert ErrorRecord("ValueError: bad", "", 1_100) == report.worker.exit.error
    assert report.worker.exit.is_failure
    assert "/logs/error.json" == report.worker.exit.error_file


OTHER_SUCCEEDS = inputs.WorkerEnded(1, 1, 0, None, None, "")


def test_worker_that_ends_with_0_by_itself_has_survived_its_error() -> None:
    """However late its end is seen: the exit has no error, and the node succeeds."""
    state = after(running(), (found(), 3_000), (ended(0), 3_100))
    assert Stage.RUNNING is stage(state)
    (exited,) = [report for report in told(state) if isinstance(report, ExitedReport)]
    message = report_message(exited, 3_200).exited.workers[0].exit
    assert (0, False) == (message.exit_code, message.HasField("error"))
    state = after(state, (OTHER_SUCCEEDS, 3_200))

    kinds = [RecordedReport, ExitedReport, ExitedReport, SucceededReport]
    assert kinds == [type(one) for one in told(state)]
    assert state.held is not None
    assert [False, False] == [has_failed(worker) for worker in state.held.workers]


def test_node_reports_its_start_when_its_only_failure_is_gone() -> None:
    """A node that has failed does not report that all workers were started: it does so then."""
    state = AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=None
    )
    state = after(
        state,
        (inputs.PortReserved(30_000), 0),
        (inputs.DesiredReceived(1, 1, run_order()), 1_000),
        (inputs.WorkerStarted(1, 0, 4_000), 1_000),
        (found(), 1_500),
    )
    late = after(state, (ended(0), 1_600))
    soon = after(state, (inputs.WorkerStarted(1, 1, 4_001), 1_550))
    assert [Stage.STARTING, Stage.FAILED] == [stage(late), stage(soon)]

    for begun in (
        after(late, (inputs.WorkerStarted(1, 1, 4_001), 1_700)),
        after(soon, (ended(0), 1_700)),
    ):
        assert Stage.RUNNING is stage(begun)
        assert StartedReport(1, (4_000, 4_001)) in begun.reports


def test_other_failures_remain() -> None:
    """A worker that survives its error does not undo the failure of another one."""
    state = after(
        running(),
        (found(), 3_000),
        (inputs.WorkerEnded(1, 1, 1, None, None, ""), 3_050),
        (ended(0), 3_100),
    )

    assert Stage.FAILED is stage(state)


def test_exit_with_0_after_our_signal_is_a_failure() -> None:
    """A worker that hangs after its error and ends because of the stop has not survived it."""
    state = after(running(), (found(), 3_000), (STOP, 5_000), (ended(0, signalled_ms=5_000), 5_100))

    report = told(state)[-1]
    assert isinstance(report, ExitedReport) and report.worker.exit is not None
    assert (True, True) == (report.worker.exit.is_failure, report.worker.exit.error is not None)


def test_worker_that_its_program_does_not_trust_has_failed() -> None:
    """Without an error file it was the program around the agent that has reported the error."""
    doubt = inputs.WorkerRecorded(1, 0, ErrorRecord("it is UNHEALTHY", "", 0), "")
    state = after(running(), (doubt, 3_000), (ended(0), 3_100), (OTHER_SUCCEEDS, 3_200))

    assert Stage.FAILED is stage(state)
    assert [RecordedReport, ExitedReport, ExitedReport] == [type(one) for one in told(state)]


def test_error_after_the_stop_signal_is_not_reported() -> None:
    """A clean-up that fails because of our signal is no failure; one before it is."""
    stopped = after(running(), (STOP, 3_000))

    assert [] == told(after(stopped, (found(100), 3_200)))
    state = after(stopped, (found(300), 3_200))
    (report,) = told(state)
    exit = report_message(report, 3_200).recorded.workers[0].exit
    assert (True, 200) == (
        exit.agent_signalled_first,
        exit.outlived_signal_for.ToMilliseconds(),
    )
    assert Stage.STOPPING is stage(state)


def test_what_is_not_news_is_not_reported() -> None:
    """A second record, one of another round, and one of an ended worker change nothing."""
    once = after(running(), (found(), 3_000))
    gone = after(running(), (ended(1), 3_000))

    assert once == after(once, (found(), 3_100))
    assert gone == after(gone, (found(), 3_100))
    assert [] == told(after(running(), (found(round=2), 3_000)))


def test_record_during_a_drain() -> None:
    """An error that is older than the drain is a failure; a later one is part of leaving."""
    drained = (inputs.SignalReceived(15), 3_000)
    draining = AgentState(
        2,
        shutdown_timeout_ms=30_000,
        coordinator_timeout_ms=60_000,
        away_since_ms=None,
        drain_ms=20_000,
    )
    state = after(
        draining,
        (inputs.PortReserved(30_000), 0),
        (inputs.DesiredReceived(1, 1, run_order()), 1_000),
        (inputs.WorkerStarted(1, 0, 4_000), 1_000),
        (inputs.WorkerStarted(1, 1, 4_001), 1_000),
        drained,
    )

    assert [] == told(after(state, (found(100), 3_200)))
    assert [RecordedReport] == [type(one) for one in told(after(state, (found(300), 3_200)))]


def test_failure_during_a_long_outage_waits_for_a_coordinator() -> None:
    """As an exit does: the time to give up begins with the failure, and again with the exit."""
    state = after(running(), (inputs.Disconnected(), 2_000), (found(), 600_000))

    assert state.ending is None
    assert 660_000 == next_deadline_ms(state)

    state = after(
        state, (ended(1), 610_000), (inputs.WorkerEnded(1, 1, 1, None, None, ""), 611_000)
    )
    assert (None, 671_000) == (state.ending, next_deadline_ms(state))


def test_exit_with_0_keeps_the_output_of_the_failure() -> None:
    """An exit with 0 has none; here it comes after our signal."""
    error = ErrorRecord("ValueError: bad", "", 100)
    recorded = inputs.WorkerRecorded(1, 0, error, "last words", error_file="/logs/error.json")
    last = ended(0, signalled_ms=5_500)
    (_, exited) = told(after(running(), (recorded, 5_000), (STOP, 5_500), (last, 6_000)))

    assert isinstance(exited, ExitedReport)
    assert exited.worker.exit is not None
    assert "last words" == exited.worker.exit.stderr_tail


def test_hello_carries_the_failure() -> None:
    """A coordinator that has lost its memory learns that a running worker has failed."""
    hello = agent_pb2.Hello()
    fill_snapshot(hello, after(running(), (found(100), 3_000)), 3_500)

    failed, healthy = hello.held.workers
    assert node_pb2.NODE_STATE_FAILED == hello.held.state
    assert (node_pb2.WORKER_STATE_RUNNING, 500) == (failed.state, failed.exit.age.ToMilliseconds())
    assert not healthy.HasField("exit")
