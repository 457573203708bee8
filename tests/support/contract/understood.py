"""What the other side understands of a value that crosses the wire, as the .proto files say it.

Texts are cleaned and cut, codes and pids brought into their ranges; everything else stays.
"""

from __future__ import annotations

from rallypoint.agent.core import desired, reports
from rallypoint.agent.core.held_round import HeldRound, LocalWorker, Milestone, Stage
from rallypoint.base.exit_codes import EXIT_CANCELLED, EXIT_FAILED, EXIT_NO_REQUEUE
from rallypoint.base.printable import to_printable_line, to_printable_lines
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model import desired as wished
from rallypoint.server.core.model.node import HeldRound as HeldThere
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import Assignment, RoundHeader, RoundReason
from rallypoint.server.core.model.round import Milestone as MilestoneThere
from rallypoint.server.core.model.verdict import Consequence
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from support.contract.values import NOW_MS


def line(text: str, most: int = 1_024) -> str:
    """Return a fact of one line as the coordinator keeps it."""
    return to_printable_line(text[: 2 * most])[:most]


def block(text: str, most: int = 4_096, *, keeps_end: bool = False) -> str:
    """Return a fact of several lines as the coordinator keeps it."""
    if text.isprintable() and len(text) <= most:
        return text
    cleaned = to_printable_lines(text[-2 * most :] if keeps_end else text[: 2 * most])
    return cleaned[-most:] if keeps_end else cleaned[:most]


def exit_there(worker: LocalWorker) -> WorkerExit:
    """Return an exit, or the failure of a running worker, as the coordinator knows it."""
    exit = worker.outcome
    assert exit is not None
    code, signal = exit.exit_code, exit.signal
    error = None
    if exit.error is not None:
        trace = block(exit.error.traceback, 16_384, keeps_end=True)
        error = ErrorRecord(block(exit.error.message), trace, exit.error.before_exit_ms)
    return WorkerExit(
        local_rank=worker.local_rank,
        pid=worker.pid,
        exit_code=code if code is None or 0 <= code <= 255 else 255,
        signal=signal if signal is None or 1 <= signal <= 127 else 127,
        agent_signalled_first=exit.signalled_first,
        ago_ms=max(0, NOW_MS - exit.at_ms),
        ran_ms=max(0, exit.at_ms - worker.started_ms) if worker.pid else 0,
        error=error,
        stderr_tail=block(exit.stderr_tail, keeps_end=True),
        signalled_before_ms=exit.signalled_before_ms,
        oom_killed=exit.oom_killed,
        failed_ms=exit.failed_ms,
        error_file=line(exit.error_file[:1_024]),
        stderr_file=line(exit.stderr_file[:1_024]),
    )


def report_there(  # noqa: C901  # one flat case per report
    report: reports.Report, sender: inputs.Sender
) -> inputs.Report:
    """Return a report as the coordinator understands it."""
    match report:
        case reports.ReadyReport(round=number, port=port):
            return inputs.Ready(sender, inputs.ReadyPort(number, port))
        case reports.StartedReport(round=number, pids=pids):
            return inputs.Started(sender, number, pids)
        case reports.ReachedReport(round=number, milestone=milestone, at_ms=at_ms):
            ago_ms = max(0, NOW_MS - at_ms)
            return inputs.Reached(sender, number, ((MILESTONES[milestone], ago_ms),))
        case reports.StartFailedReport(round=number, text=text, is_permanent=is_permanent):
            return inputs.StartFailed(sender, number, line(text[:1_024]), is_permanent)
        case reports.LeavingReport(round=number, text=text):
            return inputs.Leaving(sender, number, line(text[:1_024]))
        case reports.ExitedReport(round=number, worker=worker):
            return inputs.Exited(sender, number, (exit_there(worker),))
        case reports.RecordedReport(round=number, worker=worker):
            return inputs.Recorded(sender, number, (exit_there(worker),))
        case reports.SucceededReport(round=number):
            return inputs.Succeeded(sender, number)
        case reports.BlockedReport(round=number, pids=pids):
            return inputs.Blocked(sender, number, pids[:64])
        case reports.DrainingReport(until_ms=until_ms, reason=reason):
            return inputs.Draining(sender, max(0, until_ms - NOW_MS), line(reason[:1_024]))
        case reports.GoodbyeReport(kind=kind, text=text):
            return inputs.Goodbye(sender, line(text[:1_024]) or SILENT[kind])


def milestones_there(held: HeldRound) -> tuple[tuple[MilestoneThere, int], ...]:
    """Return what all workers of a held round have reached, as the coordinator knows it."""
    found = {
        one: [at_ms for worker in held.workers for name, at_ms in worker.milestones if name is one]
        for one in Milestone
    }
    return tuple(
        (MILESTONES[one], max(0, NOW_MS - max(times, default=0)))
        for one, times in found.items()
        if len(times) == len(held.workers)
    )


MILESTONES = {
    Milestone.IMPORTED: MilestoneThere.IMPORTED,
    Milestone.PROCESS_GROUP: MilestoneThere.PROCESS_GROUP,
}
SILENT = {
    reports.GoodbyeKind.FINISHED: "its run has ended",
    reports.GoodbyeKind.RELEASED: "the coordinator released it",
    reports.GoodbyeKind.DRAINED: "the coordinator released it",
    reports.GoodbyeKind.SIGNAL: "its agent received a signal",
    reports.GoodbyeKind.ERROR: "its agent could not continue",
}
STATES = {
    Stage.STARTING: NodeState.ASSIGNED,
    Stage.RUNNING: NodeState.STARTED,
    Stage.SUCCEEDED: NodeState.SUCCEEDED,
    Stage.FAILED: NodeState.FAILED,
    Stage.STOPPING: NodeState.UNREADY,
    Stage.SWEEPING: NodeState.UNREADY,
    Stage.BLOCKED: NodeState.BLOCKED,
    Stage.CLEAN: NodeState.UNREADY,
}
_NUMBERS = {reason: number for number, reason in enumerate(RoundReason)} | {RoundReason.UNKNOWN: 12}
"""What an agent receives for the reason of a round."""
BEGINNINGS = {
    1: RoundReason.FIRST,
    2: RoundReason.WORKER_FAILED,
    3: RoundReason.NODE_LOST,
    4: RoundReason.NODE_LEFT,
    5: RoundReason.GROWTH,
    6: RoundReason.START_OVERDUE,
    9: RoundReason.DRAINED,
}


def held_there(held: HeldRound) -> HeldThere:
    """Return a held round as the coordinator understands it."""
    header, place = held.order.header, held.order.assignment
    return HeldThere(
        header=RoundHeader(
            header.number,
            header.run,
            header.world_size,
            header.group_world_size,
            header.master_addr,
            header.master_port,
            header.restart_count,
            BEGINNINGS.get(header.reason, RoundReason.UNKNOWN),
            header.epoch,
        ),
        assignment=Assignment(
            place.group_rank,
            place.first_rank,
            place.local_world_size,
            place.role,
            place.first_role_rank,
            place.role_world_size,
        ),
        state=STATES[held.stage],
        pids=tuple(worker.pid for worker in held.workers),
        exits=tuple(exit_there(one) for one in held.workers if one.pid and one.outcome is not None),
        start_failure=line((held.start_failure or "")[:1_024]),
        worker_token=held.order.worker_token,
        milestones=milestones_there(held),
    )


def desired_here(wish: wished.Desired) -> desired.Desired:
    """Return a desired state as the agent understands it."""
    match wish:
        case wished.DesiredRun(
            header=header, assignment=place, max_restarts=most, held_token=token
        ):
            return desired.RunOrder(
                desired.RoundHeader(
                    header.number,
                    header.run,
                    header.world_size,
                    header.group_world_size,
                    header.master_addr,
                    header.master_port,
                    header.restart_count,
                    _NUMBERS[header.reason],
                    header.epoch,
                ),
                desired.Assignment(
                    place.group_rank,
                    place.first_rank,
                    place.local_world_size,
                    place.role,
                    place.first_role_rank,
                    place.role_world_size,
                ),
                most,
                token,
                wish.reached_at,
            )
        case wished.DesiredStop(round=number, shutdown_timeout_ms=timeout_ms, text=text):
            return desired.DesiredStop(number, timeout_ms, text)
        case wished.DesiredStandby(spare=spare):
            return desired.DesiredStandby(spare)
        case wished.DesiredReleased(text=text):
            return desired.DesiredEnd(0, f"released: {text}", is_release=True)
        case wished.DesiredFinished(outcome=outcome, verdict=verdict):
            is_final = verdict is not None and verdict.consequence is Consequence.NO_REQUEUE
            failed = EXIT_NO_REQUEUE if is_final else EXIT_FAILED
            codes = {Outcome.SUCCEEDED: 0, Outcome.CANCELLED: EXIT_CANCELLED}
            return desired.DesiredEnd(codes.get(outcome, failed), ENDS[outcome])


ENDS = {
    Outcome.SUCCEEDED: "the job succeeded",
    Outcome.FAILED: "the job failed",
    Outcome.ABANDONED: "the job was abandoned",
    Outcome.CANCELLED: "the job was cancelled",
}
