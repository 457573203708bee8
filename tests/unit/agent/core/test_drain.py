"""The agent's core during a drain: what workers and coordinator learn, and when the node leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.desired import DesiredDrain, DesiredEnd, DesiredStop, Notice
from rallypoint.agent.core.reports import (
    DrainingReport,
    ExitedReport,
    GoodbyeReport,
    LeavingReport,
    ReadyReport,
    Report,
    SucceededReport,
)
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import next_deadline_ms, step
from support.core.orders import run_order

DRAIN_MS = 20_000
SHUTDOWN_TIMEOUT_MS = 3_000
SIGUSR1, SIGINT, SIGTERM = 10, 2, 15
ORDER = run_order(world_size=4, group_world_size=2, role_world_size=4)
SIGTERMED = inputs.SignalReceived(SIGTERM)


@dataclass
class Bench:
    """One agent's core, with all its effects and reports so far."""

    state: AgentState
    now_ms: int = 0
    done: list[effects.Effect] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def post(self, *posted: inputs.Input) -> None:
        """Apply inputs, all at the present time."""
        for one in posted:
            known = len(self.state.reports)
            self.state, done = step(self.state, one, self.now_ms)
            self.done += done
            self.reports += self.state.reports[known:]

    def wait(self, ms: int) -> None:
        """Let time pass, with a step at each deadline."""
        until_ms = self.now_ms + ms
        while (due_ms := next_deadline_ms(self.state)) is not None and due_ms <= until_ms:
            self.now_ms = due_ms
            before = self.state
            self.post(inputs.TimePassed())
            if self.state == before:
                break
        self.now_ms = until_ms

    def end_worker(self, local_rank: int, exit_code: int = 0) -> None:
        """Let a worker end."""
        self.post(inputs.WorkerEnded(1, local_rank, exit_code, None, None, ""))

    def signals(self) -> list[int]:
        """Return the signals to the workers so far."""
        return [one.signum for one in self.done if isinstance(one, effects.SignalWorkers)]

    def sweeps(self) -> int:
        """Return the number of sweeps so far."""
        return sum(isinstance(one, effects.Sweep) for one in self.done)

    def exits(self) -> list[int]:
        """Return the exit codes with which the agent has ended."""
        return [one.code for one in self.done if isinstance(one, effects.Exit)]

    def clean(self) -> None:
        """Let the sweep succeed."""
        self.post(inputs.Swept(self.state.sweep_token), inputs.PortReserved(20_002))


def running(drain_ms: int = DRAIN_MS, drain_signal: int | None = SIGUSR1) -> Bench:
    """Return an agent with two workers that run."""
    bench = Bench(
        AgentState(
            workers=2,
            shutdown_timeout_ms=SHUTDOWN_TIMEOUT_MS,
            drain_ms=drain_ms,
            drain_signal=drain_signal,
            coordinator_timeout_ms=60_000,
            away_since_ms=0,
        )
    )
    bench.post(
        inputs.PortReserved(20_001),
        inputs.Welcomed(1),
        inputs.DesiredReceived(1, 1, ORDER),
        inputs.WorkerStarted(1, 0, 100),
        inputs.WorkerStarted(1, 1, 101),
    )
    return bench


def test_workers_are_notified_and_go_on() -> None:
    """After SIGTERM to the agent, the workers get the drain signal and a notice, nothing else."""
    bench = running()
    bench.post(SIGTERMED)
    bench.wait(DRAIN_MS - 1)

    assert ([SIGUSR1], 0, []) == (bench.signals(), bench.sweeps(), bench.exits())
    (written,) = (one for one in bench.done if isinstance(one, effects.WriteNotices))
    (notice,) = written.notices
    assert ("drain", True, DRAIN_MS) == (notice.kind, notice.is_here, notice.until_ms)
    assert isinstance(bench.reports[-1], DrainingReport)


def test_workers_get_no_signal_by_default() -> None:
    """A script without a handler would die of it: all that the workers get is the notice."""
    bench = running(drain_signal=AgentState(1, 0, 0, None).drain_signal)
    bench.post(SIGTERMED)
    bench.wait(DRAIN_MS - 1)

    assert ([], 0, []) == (bench.signals(), bench.sweeps(), bench.exits())
    assert 1 == sum(isinstance(one, effects.WriteNotices) for one in bench.done)
    assert isinstance(bench.reports[-1], DrainingReport)

    bench.wait(1)
    assert [SIGTERM] == bench.signals()


@pytest.mark.parametrize(("chosen", "expected"), [(SIGUSR1, [SIGUSR1]), (None, [])])
def test_worker_that_starts_during_a_drain(chosen: int | None, expected: list[int]) -> None:
    """It gets the chosen drain signal too, once, and no other."""
    bench = Bench(AgentState(2, 0, 60_000, None, drain_ms=DRAIN_MS, drain_signal=chosen))
    bench.post(inputs.PortReserved(20_001), inputs.Welcomed(1))
    bench.post(inputs.DesiredReceived(1, 1, ORDER), SIGTERMED)
    bench.post(inputs.WorkerStarted(1, 0, 100), inputs.WorkerStarted(1, 1, 101))

    assert expected == bench.signals()


def test_agent_leaves_when_the_workers_are_done() -> None:
    """Once all workers have ended, the node leaves at once; their exits are no successes."""
    bench = running()
    bench.post(SIGTERMED)
    bench.wait(5_000)
    bench.end_worker(0)
    assert not any(isinstance(report, LeavingReport) for report in bench.reports)
    bench.end_worker(1, exit_code=1)
    bench.clean()

    exits = [report.worker.exit for report in bench.reports if isinstance(report, ExitedReport)]
    assert [True, True] == [exit is not None and exit.signalled_first for exit in exits]
    assert not any(isinstance(report, SucceededReport) for report in bench.reports)
    assert [LeavingReport, GoodbyeReport] == [type(report) for report in bench.reports[-2:]]
    assert ([128 + SIGTERM], [SIGUSR1]) == (bench.exits(), bench.signals())


def test_workers_are_stopped_when_the_time_is_over() -> None:
    """At the deadline the agent stops them: SIGTERM, the shutdown timeout, then SIGKILL."""
    bench = running()
    bench.post(SIGTERMED)
    bench.wait(DRAIN_MS)
    assert ([SIGUSR1, SIGTERM], 0) == (bench.signals(), bench.sweeps())

    bench.wait(SHUTDOWN_TIMEOUT_MS - 1)
    assert 0 == bench.sweeps()

    bench.wait(1)
    assert 1 == bench.sweeps()


@pytest.mark.parametrize("signum", [SIGTERM, SIGINT])
def test_second_signal_ends_the_drain(signum: int) -> None:
    """Another signal stops the workers at once."""
    bench = running()
    bench.post(SIGTERMED)
    bench.wait(1_000)

    bench.post(inputs.SignalReceived(signum))

    assert [SIGUSR1, signum] == bench.signals()
    assert isinstance(bench.reports[-1], LeavingReport)


@pytest.mark.parametrize(("drain_ms", "signum"), [(0, SIGTERM), (DRAIN_MS, SIGINT)])
def test_no_drain(drain_ms: int, signum: int) -> None:
    """Without a drain timeout, and on Ctrl-C, the workers are stopped at once."""
    bench = running(drain_ms)
    bench.post(inputs.SignalReceived(signum))

    assert [signum] == bench.signals()
    assert not any(isinstance(report, DrainingReport) for report in bench.reports)


def test_deadline_holds_without_a_coordinator() -> None:
    """The agent stops its workers at the deadline even when it is disconnected."""
    bench = running()
    bench.post(SIGTERMED, inputs.Disconnected())
    bench.wait(DRAIN_MS)

    assert [SIGUSR1, SIGTERM] == bench.signals()


def test_operator_drains() -> None:
    """A desired state with a drain begins it, once; after it the agent exits with 0."""
    bench = running()
    drain = DesiredDrain(DRAIN_MS, "maintenance")
    wanted = inputs.DesiredReceived(1, 2, ORDER, drain)
    bench.post(wanted, wanted)
    assert [SIGUSR1] == bench.signals()
    (report,) = [one for one in bench.reports if isinstance(one, DrainingReport)]
    assert DrainingReport(DRAIN_MS, "maintenance") == report

    bench.end_worker(0)
    bench.end_worker(1)
    bench.clean()
    assert [0] == bench.exits()


def test_drain_that_ends_sooner() -> None:
    """A later desired state can bring the end closer, and not further away; the reason stays."""
    bench = running()
    for revision, until_ms in ((2, DRAIN_MS), (3, DRAIN_MS // 2), (4, 2 * DRAIN_MS)):
        drain = DesiredDrain(until_ms, f"revision {revision}")
        bench.post(inputs.DesiredReceived(1, revision, ORDER, drain))

    assert bench.state.drain is not None
    assert (DRAIN_MS // 2, "revision 2") == (bench.state.drain.until_ms, bench.state.drain.reason)


def test_drain_of_an_outdated_desired_state_is_ignored() -> None:
    """Only the newest desired state counts."""
    bench = running()
    bench.post(inputs.DesiredReceived(1, 3, ORDER))
    bench.post(inputs.DesiredReceived(1, 2, ORDER, DesiredDrain(DRAIN_MS, "maintenance")))

    assert bench.state.drain is None


def test_drain_that_comes_with_the_order_starts_nothing() -> None:
    """A node that has to leave before it starts the round leaves at once."""
    bench = Bench(
        AgentState(2, SHUTDOWN_TIMEOUT_MS, coordinator_timeout_ms=60_000, away_since_ms=None)
    )
    bench.post(inputs.PortReserved(30_000))
    bench.post(inputs.DesiredReceived(1, 1, ORDER, DesiredDrain(DRAIN_MS, "maintenance")))

    assert [0] == bench.exits()
    assert not any(isinstance(one, effects.StartWorkers) for one in bench.done)


def test_echo_of_an_own_drain_changes_nothing() -> None:
    """A drain that the agent began itself keeps its time, its reason and its exit code."""
    bench = running()
    bench.post(SIGTERMED)
    before = bench.state.drain
    bench.post(inputs.DesiredReceived(1, 2, ORDER, DesiredDrain(DRAIN_MS + 30, "received SIGTERM")))

    assert before == bench.state.drain
    assert [SIGUSR1] == bench.signals()


def test_notice_of_another_node_only_reaches_the_file() -> None:
    """The notice file is written, and the workers get no signal."""
    bench = running()
    notice = Notice("drain", "b", "SIGTERM", DRAIN_MS)
    bench.post(inputs.NoticesReceived((notice,)))

    assert effects.WriteNotices(1, (notice,)) == bench.done[-1]
    assert [] == bench.signals()


def test_node_leaves_when_its_round_stops() -> None:
    """If the round stops for another reason, the node reports that it is clean and leaves."""
    bench = running()
    bench.post(
        SIGTERMED, inputs.DesiredReceived(1, 2, DesiredStop(1, SHUTDOWN_TIMEOUT_MS, "a failure"))
    )
    bench.end_worker(0, 1)
    bench.end_worker(1, 1)
    bench.clean()

    assert [ReadyReport, GoodbyeReport] == [type(report) for report in bench.reports[-2:]]
    assert [128 + SIGTERM] == bench.exits()


def test_node_that_drains_while_a_round_is_stopped() -> None:
    """The coordinator learns of the drain before the node is clean, so the next round
    does not include it."""
    bench = running()
    bench.post(
        inputs.DesiredReceived(1, 2, DesiredStop(1, SHUTDOWN_TIMEOUT_MS, "a failure")), SIGTERMED
    )
    assert DrainingReport(DRAIN_MS, "received SIGTERM") == bench.reports[-1]

    bench.end_worker(0)
    bench.end_worker(1)
    bench.clean()

    assert [ReadyReport, GoodbyeReport] == [type(report) for report in bench.reports[-2:]]
    assert [SIGTERM] == bench.signals()


def test_outcome_during_a_drain_sets_the_exit_code() -> None:
    """If the run ends before the node leaves, the exit code is that of its outcome."""
    bench = running()
    bench.post(SIGTERMED, inputs.DesiredReceived(1, 2, DesiredEnd(0, "the job succeeded")))
    bench.end_worker(0)
    bench.end_worker(1)
    bench.clean()

    assert [0] == bench.exits()


def test_idle_node_leaves_at_once() -> None:
    """A node without workers leaves without a drain."""
    bench = running()
    bench.post(inputs.DesiredReceived(1, 2, DesiredStop(1, SHUTDOWN_TIMEOUT_MS, "growth")))
    bench.end_worker(0)
    bench.end_worker(1)
    bench.clean()

    bench.post(SIGTERMED)

    assert [128 + SIGTERM] == bench.exits()
