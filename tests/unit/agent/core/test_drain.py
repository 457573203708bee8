"""The agent's core while its node wants to leave: who is told what, and when it goes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rallypoint.agent.core import inputs
from rallypoint.agent.core.model import (
    AgentState,
    DesiredEnd,
    DesiredRun,
    DesiredStop,
    DrainingReport,
    ExitedReport,
    GoodbyeReport,
    Notice,
    ReadyReport,
    RefusedReport,
    Report,
    SucceededReport,
)
from rallypoint.agent.core.step import next_deadline_ms, step
from support.orders import run_order

DRAIN_MS = 20_000
GRACE_MS = 3_000
SIGUSR1, SIGINT, SIGTERM = 10, 2, 15
ORDER = run_order(world_size=4, group_world_size=2, role_world_size=4)
SIGTERMED = inputs.SignalReceived(SIGTERM)


@dataclass
class Desk:
    """One agent's core, and everything that it has wanted done and has reported."""

    state: AgentState
    now_ms: int = 0
    done: list[inputs.Effect] = field(default_factory=list)
    said: list[Report] = field(default_factory=list)

    def take(self, *said: inputs.Input) -> None:
        """Take inputs, each at the present time."""
        for one in said:
            known = len(self.state.reports)
            self.state, effects = step(self.state, one, self.now_ms)
            self.done += effects
            self.said += self.state.reports[known:]

    def wait(self, ms: int) -> None:
        """Let time pass; what is due comes at its own time."""
        until_ms = self.now_ms + ms
        while (due_ms := next_deadline_ms(self.state)) is not None and due_ms <= until_ms:
            self.now_ms = due_ms
            before = self.state
            self.take(inputs.TimePassed())
            if self.state == before:
                break
        self.now_ms = until_ms

    def end_worker(self, local_rank: int, exit_code: int = 0) -> None:
        """Let a worker end."""
        self.take(inputs.WorkerEnded(1, local_rank, exit_code, None, None, ""))

    def signals(self) -> list[int]:
        """Return the signals that workers got so far."""
        return [one.signum for one in self.done if isinstance(one, inputs.SignalWorkers)]

    def sweeps(self) -> int:
        """Return how often everything that was left was killed."""
        return sum(isinstance(one, inputs.Sweep) for one in self.done)

    def exits(self) -> list[int]:
        """Return the exit codes with which the agent has ended."""
        return [one.code for one in self.done if isinstance(one, inputs.Exit)]

    def clean(self) -> None:
        """Let the sweep find nothing more."""
        self.take(inputs.Swept(self.state.sweep_token), inputs.PortReserved(20_002))


def running(drain_ms: int = DRAIN_MS) -> Desk:
    """Return an agent with two workers that run."""
    desk = Desk(
        AgentState(
            workers=2,
            grace_ms=GRACE_MS,
            drain_ms=drain_ms,
            drain_signal=SIGUSR1,
            coordinator_timeout_ms=60_000,
            away_since_ms=0,
        )
    )
    desk.take(
        inputs.PortReserved(20_001),
        inputs.Welcomed(1),
        inputs.DesiredCame(1, 1, DesiredRun(ORDER)),
        inputs.WorkerStarted(1, 0, 100),
        inputs.WorkerStarted(1, 1, 101),
    )
    return desk


def test_workers_are_told_and_go_on() -> None:
    """SIGTERM to the agent: the workers get the chosen signal and a notice, and nothing else."""
    desk = running()
    desk.take(SIGTERMED)
    desk.wait(DRAIN_MS - 1)

    assert ([SIGUSR1], 0, []) == (desk.signals(), desk.sweeps(), desk.exits())
    (told,) = (one for one in desk.done if isinstance(one, inputs.TellWorkers))
    (notice,) = told.notices
    assert ("drain", True, DRAIN_MS) == (notice.kind, notice.is_here, notice.until_ms)
    assert isinstance(desk.said[-1], DrainingReport)


def test_agent_goes_when_the_workers_are_done() -> None:
    """All workers have ended: the node leaves at once, and its exits are no successes."""
    desk = running()
    desk.take(SIGTERMED)
    desk.wait(5_000)
    desk.end_worker(0)
    assert not any(isinstance(report, RefusedReport) for report in desk.said)
    desk.end_worker(1, exit_code=1)
    desk.clean()

    exits = [report.worker.exit for report in desk.said if isinstance(report, ExitedReport)]
    assert [True, True] == [exit is not None and exit.signalled_first for exit in exits]
    assert not any(isinstance(report, SucceededReport) for report in desk.said)
    assert [RefusedReport, GoodbyeReport] == [type(report) for report in desk.said[-2:]]
    assert ([128 + SIGTERM], [SIGUSR1]) == (desk.exits(), desk.signals())


def test_workers_are_stopped_when_the_time_is_over() -> None:
    """At the deadline comes a stop like any other: the signal, the grace, and only then KILL."""
    desk = running()
    desk.take(SIGTERMED)
    desk.wait(DRAIN_MS)
    assert ([SIGUSR1, SIGTERM], 0) == (desk.signals(), desk.sweeps())

    desk.wait(GRACE_MS - 1)
    assert 0 == desk.sweeps()

    desk.wait(1)
    assert 1 == desk.sweeps()


@pytest.mark.parametrize("signum", [SIGTERM, SIGINT])
def test_second_signal_ends_the_patience(signum: int) -> None:
    """Another signal stops the workers at once."""
    desk = running()
    desk.take(SIGTERMED)
    desk.wait(1_000)

    desk.take(inputs.SignalReceived(signum))

    assert [SIGUSR1, signum] == desk.signals()
    assert isinstance(desk.said[-1], RefusedReport)


@pytest.mark.parametrize(("drain_ms", "signum"), [(0, SIGTERM), (DRAIN_MS, SIGINT)])
def test_no_drain(drain_ms: int, signum: int) -> None:
    """Without a time to drain, and for Ctrl-C, the workers are stopped at once."""
    desk = running(drain_ms)
    desk.take(inputs.SignalReceived(signum))

    assert [signum] == desk.signals()
    assert not any(isinstance(report, DrainingReport) for report in desk.said)


def test_time_goes_on_without_a_coordinator() -> None:
    """The agent keeps its own time."""
    desk = running()
    desk.take(SIGTERMED, inputs.Disconnected())
    desk.wait(DRAIN_MS)

    assert [SIGUSR1, SIGTERM] == desk.signals()


def test_operator_asks() -> None:
    """A notice that names this node begins a drain; the agent then ends with 0."""
    desk = running()
    asked = Notice("drain", "a", "maintenance", DRAIN_MS, is_here=True)
    desk.take(inputs.NoticesCame((asked,)), inputs.NoticesCame((asked,)))
    assert [SIGUSR1] == desk.signals()

    desk.end_worker(0)
    desk.end_worker(1)
    desk.clean()
    assert [0] == desk.exits()


def test_notice_of_another_node_only_reaches_the_file() -> None:
    """What happens elsewhere costs these workers nothing."""
    desk = running()
    notice = Notice("drain", "b", "SIGTERM", DRAIN_MS)
    desk.take(inputs.NoticesCame((notice,)))

    assert inputs.TellWorkers(1, (notice,)) == desk.done[-1]
    assert [] == desk.signals()


def test_round_that_is_stopped_lets_the_node_go() -> None:
    """The round ends for another reason: clean, the node says so and leaves."""
    desk = running()
    desk.take(SIGTERMED, inputs.DesiredCame(1, 2, DesiredStop(1, GRACE_MS, "a failure")))
    desk.end_worker(0, 1)
    desk.end_worker(1, 1)
    desk.clean()

    assert [ReadyReport, GoodbyeReport] == [type(report) for report in desk.said[-2:]]
    assert [128 + SIGTERM] == desk.exits()


def test_node_that_drains_while_a_round_is_stopped() -> None:
    """The coordinator hears that it drains before it hears that it is clean, so that the next round
    does not count on it."""
    desk = running()
    desk.take(inputs.DesiredCame(1, 2, DesiredStop(1, GRACE_MS, "a failure")), SIGTERMED)
    assert DrainingReport(DRAIN_MS, "the agent got signal 15") == desk.said[-1]

    desk.end_worker(0)
    desk.end_worker(1)
    desk.clean()

    assert [ReadyReport, GoodbyeReport] == [type(report) for report in desk.said[-2:]]
    assert [SIGTERM] == desk.signals()


def test_run_that_ends_first_gives_the_exit_code() -> None:
    """When the run has its outcome before the node could go, the outcome is what counts."""
    desk = running()
    desk.take(SIGTERMED, inputs.DesiredCame(1, 2, DesiredEnd(0, "the job has succeeded")))
    desk.end_worker(0)
    desk.end_worker(1)
    desk.clean()

    assert [0] == desk.exits()


def test_idle_node_goes_at_once() -> None:
    """Without workers there is nothing to wait for."""
    desk = running()
    desk.take(inputs.DesiredCame(1, 2, DesiredStop(1, GRACE_MS, "growth")))
    desk.end_worker(0)
    desk.end_worker(1)
    desk.clean()

    desk.take(SIGTERMED)

    assert [128 + SIGTERM] == desk.exits()
