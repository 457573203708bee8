"""A step of the agent's core in progress: its state and effects so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from msgspec.structs import replace

from rallypoint.agent.core.effects import Effect, SendReports, SignalWorkers, Sweep
from rallypoint.agent.core.held_round import HeldRound, Stage, choose_look_ms
from rallypoint.agent.core.reports import BlockedReport, ExitedReport, RecordedReport, Report
from rallypoint.agent.core.state import AgentState, Ending

if TYPE_CHECKING:
    from rallypoint.agent.core.desired import Desired, DesiredDrain, Notice
    from rallypoint.agent.core.inputs import Welcomed
    from rallypoint.agent.core.state import Drain, PortWait

SIGTERM = 15


class Changes(TypedDict, total=False):
    """What a step may change of `AgentState`, so that mypy checks every change."""

    away_since_ms: int | None
    confirmed_ms: int | None
    held: HeldRound | None
    unheard: HeldRound | None
    last_round: int
    port: int
    port_wait: PortWait | None
    unprepared: str
    has_started: bool
    unprepared_rounds: int
    desired: Desired
    desired_drain: DesiredDrain | None
    revision: int
    epoch: int
    reports: tuple[Report, ...]
    acknowledged: int
    drain: Drain
    notices: tuple[Notice, ...]
    ending: Ending
    silent_helper: int
    sweep_token: int


class Work:
    """A state that a step changes, with the effects so far."""

    def __init__(self, state: AgentState, now_ms: int) -> None:
        """Begin with `state` at `now_ms`."""
        self.state = state
        self.now_ms = now_ms
        self.effects: list[Effect] = []

    def change(self, **changes: Unpack[Changes]) -> None:
        """Change fields of the state."""
        self.state = replace(self.state, **changes)

    def hold(self, held: HeldRound) -> None:
        """Change the held round."""
        self.change(held=held)

    def let_go(self) -> None:
        """Hold no round any more; a Hello names it until its exits are acknowledged."""
        held = self.state.held
        self.change(held=None, unheard=held if _tells_exits(self.state.reports) else None)

    def forget_reports(self, sequence: int) -> None:
        """Drop the reports that are acknowledged, up to `sequence`."""
        count = min(sequence - self.state.acknowledged, len(self.state.reports))
        if count > 0:
            reports = self.state.reports[count:]
            self.change(acknowledged=self.state.acknowledged + count, reports=reports)
        if not _tells_exits(self.state.reports):
            self.change(unheard=None)

    def do(self, effect: Effect) -> None:
        """Add an effect."""
        self.effects.append(effect)

    def welcome(self, welcomed: Welcomed) -> None:
        """Begin a session; what waited for one is sent."""
        self.change(away_since_ms=None, epoch=max(self.state.epoch, welcomed.epoch))
        self.do(SendReports())

    def report(self, report: Report) -> None:
        """Queue a report; without a session it waits for the next one."""
        self.change(reports=(*self.state.reports, report))
        self.do(SendReports())


def _tells_exits(reports: tuple[Report, ...]) -> bool:
    return any(isinstance(report, ExitedReport | RecordedReport) for report in reports)


def end(work: Work, ending: Ending) -> None:
    """Decide how the agent ends; the first of several endings counts."""
    if work.state.ending is None:
        work.change(ending=ending)


def stop(work: Work, shutdown_timeout_ms: int, signum: int = SIGTERM) -> None:
    """Begin to stop the held round, once."""
    held = work.state.held
    assert held is not None
    if held.is_stopping:
        return
    kill_ms = work.now_ms + shutdown_timeout_ms
    held, look_ms = held.signalled(work.now_ms), choose_look_ms(shutdown_timeout_ms)
    work.hold(held.moved(Stage.STOPPING, kill_ms=kill_ms, look_ms=look_ms))
    if not held.all_ended:
        work.do(SignalWorkers(signum))
    if work.state.silent_helper:
        report_silence(work)


def report_silence(work: Work) -> None:
    """Report that the held round, which is being stopped, waits for a silent helper."""
    held, pid = work.state.held, work.state.silent_helper
    assert held is not None
    text = f"its helper process {pid} does not answer"
    work.report(BlockedReport(held.number, (pid,), text))


def sweep(work: Work) -> None:
    """Kill every process of the held round, once."""
    held = work.state.held
    assert held is not None
    if held.stage in (Stage.SWEEPING, Stage.BLOCKED, Stage.CLEAN):
        return
    token = work.state.sweep_token + 1
    work.change(sweep_token=token, held=held.moved(Stage.SWEEPING))
    work.do(Sweep(token))
