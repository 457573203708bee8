"""Messages between agents and the coordinator: values of both cores, without protobuf.

The conversions are those of the agent's `session/translate.py` and the coordinator's `rpc/convert`.
What the latter would refuse is an `AssertionError` here, because an agent must never send it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rallypoint.agent.core import desired, held_round, reports
from rallypoint.agent.core.held_round import LocalWorker, Stage
from rallypoint.server.core.messages import effects, inputs
from rallypoint.server.core.model.desired import (
    Desired,
    DesiredFinished,
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
)
from rallypoint.server.core.model.node import HeldRound, NodeState
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import Assignment, RoundHeader, RoundReason
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit

_NODE_STATES = {
    Stage.STARTING: NodeState.ASSIGNED,
    Stage.RUNNING: NodeState.STARTED,
    Stage.SUCCEEDED: NodeState.SUCCEEDED,
    Stage.FAILED: NodeState.FAILED,
    Stage.STOPPING: NodeState.UNREADY,
    Stage.SWEEPING: NodeState.UNREADY,
    Stage.BLOCKED: NodeState.BLOCKED,
    Stage.CLEAN: NodeState.UNREADY,
}
_REASONS = tuple(RoundReason)


@dataclass(frozen=True, slots=True)
class Hangup:
    """The other side or the network ended the stream."""

    dismissal: int | None = None
    """Exit code of an agent that is refused for good."""
    text: str = "the stream broke"


@dataclass(frozen=True, slots=True)
class Down:
    """An envelope to an agent. A Welcome brings the desired state along when there is one."""

    connection: int
    epoch: int
    acknowledged: int
    welcome: effects.Welcome | None = None
    coordinator_id: str = ""
    interval_ms: int = 0
    lease_ms: int = 0
    desired: effects.Send | None = None
    notify: effects.Notify | None = None
    heartbeat: int = 0
    """Highest heartbeat that was heard on this connection."""


Up = inputs.Input | Hangup


def held_of(held: held_round.HeldRound, now_ms: int) -> HeldRound:
    """Return the round that an agent holds, as its Hello carries it."""
    header, assignment = held.order.header, held.order.assignment
    assert header.number > 0 and header.run > 0
    assert assignment.first_rank + assignment.local_world_size <= header.world_size
    assert len(held.workers) == assignment.local_world_size
    return HeldRound(
        header=header_of(held.order),
        assignment=Assignment(
            group_rank=assignment.group_rank,
            first_rank=assignment.first_rank,
            local_world_size=assignment.local_world_size,
            role=assignment.role,
            first_role_rank=assignment.first_role_rank,
            role_world_size=assignment.role_world_size,
        ),
        state=_NODE_STATES[held.stage],
        pids=tuple(worker.pid for worker in held.workers),
        exits=tuple(
            exit_of(worker, now_ms)
            for worker in held.workers
            if worker.pid and worker.outcome is not None
        ),
        start_failure=held.start_failure or "",
    )


def header_of(order: desired.RunOrder) -> RoundHeader:
    """Return what the members of the round share."""
    header = order.header
    return RoundHeader(
        number=header.number,
        run=header.run,
        world_size=header.world_size,
        group_world_size=header.group_world_size,
        master_addr=header.master_addr,
        master_port=header.master_port,
        restart_count=header.restart_count,
        reason=_REASONS[header.reason],
        epoch=header.epoch,
    )


def exit_of(worker: LocalWorker, now_ms: int) -> WorkerExit:
    """Return how a worker ended, or how it failed while it still runs."""
    exit = worker.outcome
    assert exit is not None
    has_ended = (exit.exit_code is None) != (exit.signal is None)
    assert has_ended == (worker.exit is not None) and (has_ended or exit.error is not None)
    return WorkerExit(
        local_rank=worker.local_rank,
        pid=worker.pid,
        exit_code=exit.exit_code,
        signal=exit.signal,
        agent_signalled_first=exit.signalled_first,
        ago_ms=max(0, now_ms - exit.at_ms),
        ran_ms=max(0, exit.at_ms - worker.started_ms) if worker.pid else 0,
        error=None if exit.error is None else _error_of(exit.error),
        stderr_tail=exit.stderr_tail,
        signalled_before_ms=exit.signalled_before_ms,
        oom_killed=exit.oom_killed,
    )


def _error_of(error: held_round.ErrorRecord) -> ErrorRecord:
    return ErrorRecord(error.message, error.traceback, error.before_exit_ms)


def ready_of(round: int, port: int) -> inputs.ReadyPort:
    """Return what a clean node reports of itself."""
    assert 0 < port < 65_536, "a clean node has a port"
    return inputs.ReadyPort(round, port)


def report_of(  # noqa: C901  # one flat case per report
    report: reports.Report, sender: inputs.Sender, now_ms: int
) -> inputs.Report:
    """Return an agent's report as the coordinator receives it."""
    match report:
        case reports.ReadyReport(round=number, port=port):
            return inputs.Ready(sender, ready_of(number, port))
        case reports.StartedReport(round=number, pids=pids):
            assert all(pids)
            return inputs.Started(sender, number, pids)
        case reports.StartFailedReport(round=number, text=text):
            return inputs.StartFailed(sender, number, text)
        case reports.LeavingReport(round=number, text=text):
            return inputs.Leaving(sender, number, text)
        case reports.RecordedReport(round=number, worker=worker):
            return inputs.Recorded(sender, number, (exit_of(worker, now_ms),))
        case reports.ExitedReport(round=number, worker=worker):
            return inputs.Exited(sender, number, (exit_of(worker, now_ms),))
        case reports.SucceededReport(round=number):
            return inputs.Succeeded(sender, number)
        case reports.BlockedReport(round=number, pids=pids):
            return inputs.Blocked(sender, number, pids)
        case reports.DrainingReport(until_ms=until_ms, reason=reason):
            return inputs.Draining(sender, max(0, until_ms - now_ms), reason)
        case reports.GoodbyeReport(text=text):
            return inputs.Goodbye(sender, text)
        case _:
            assert_never(report)


def desired_of(wanted: Desired) -> desired.Desired:
    """Return a desired state as the agent receives it."""
    match wanted:
        case DesiredRun():
            return _order_of(wanted)
        case DesiredStop(round=number, shutdown_timeout_ms=shutdown_timeout_ms, text=text):
            return desired.DesiredStop(number, shutdown_timeout_ms, text)
        case DesiredStandby(spare=spare):
            return desired.DesiredStandby(spare)
        case DesiredReleased(text=text):
            return desired.DesiredEnd(0, f"released: {text}", is_release=True)
        case DesiredFinished(outcome=outcome):
            code = 0 if outcome is Outcome.SUCCEEDED else 1
            return desired.DesiredEnd(code, f"the job {outcome.value}")
        case _:
            assert_never(wanted)


def drain_of(send: effects.Send, now_ms: int) -> desired.DesiredDrain | None:
    """Return the drain in a desired state as the agent receives it."""
    drain = send.desired.drain if isinstance(send.desired, DesiredRun | DesiredStop) else None
    return (
        None if drain is None else desired.DesiredDrain(now_ms + send.drain_left_ms, drain.reason)
    )


def notices_of(notify: effects.Notify | None, now_ms: int) -> tuple[desired.Notice, ...]:
    """Return a node's notices as its agent receives them."""
    return tuple(
        desired.Notice(
            "growth" if notice.name is None else "drain",
            notice.name or "",
            notice.reason,
            now_ms + left_ms,
        )
        for notice, left_ms in (notify.notices if notify is not None else ())
    )


def _order_of(wanted: DesiredRun) -> desired.RunOrder:
    header, assignment = wanted.header, wanted.assignment
    return desired.RunOrder(
        desired.RoundHeader(
            number=header.number,
            run=header.run,
            world_size=header.world_size,
            group_world_size=header.group_world_size,
            master_addr=header.master_addr,
            master_port=header.master_port,
            restart_count=header.restart_count,
            reason=_REASONS.index(header.reason),
            epoch=header.epoch,
        ),
        desired.Assignment(
            group_rank=assignment.group_rank,
            first_rank=assignment.first_rank,
            local_world_size=assignment.local_world_size,
            role=assignment.role,
            first_role_rank=assignment.first_role_rank,
            role_world_size=assignment.role_world_size,
        ),
        wanted.max_restarts,
    )
