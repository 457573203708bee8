"""Translates between the values of the agent's core and the messages of the protocol."""

from __future__ import annotations

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import (
    Assignment,
    Desired,
    DesiredDrain,
    DesiredEnd,
    DesiredStandby,
    DesiredStop,
    Notice,
    RoundHeader,
    RunOrder,
)
from rallypoint.agent.core.held_round import HeldRound, LocalWorker, Milestone, Stage
from rallypoint.agent.core.reports import (
    BlockedReport,
    DrainingReport,
    ExitedReport,
    GoodbyeKind,
    GoodbyeReport,
    LeavingReport,
    ReachedReport,
    ReadyReport,
    RecordedReport,
    Report,
    StartedReport,
    StartFailedReport,
    SucceededReport,
)
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.session.texts import limit_texts
from rallypoint.base.exit_codes import EXIT_CANCELLED, EXIT_FAILED, EXIT_NO_REQUEUE
from rallypoint.base.limits import TEXT_CHARS_MAX
from rallypoint.base.printable import to_printable_line
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, round_pb2
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.wire.durations import to_duration, to_ms, to_timestamp

_NODE_STATES = {
    Stage.STARTING: node_pb2.NODE_STATE_ASSIGNED,
    Stage.RUNNING: node_pb2.NODE_STATE_STARTED,
    Stage.SUCCEEDED: node_pb2.NODE_STATE_SUCCEEDED,
    Stage.FAILED: node_pb2.NODE_STATE_FAILED,
    Stage.STOPPING: node_pb2.NODE_STATE_STOPPING,
    Stage.SWEEPING: node_pb2.NODE_STATE_STOPPING,
    Stage.BLOCKED: node_pb2.NODE_STATE_BLOCKED,
    Stage.CLEAN: node_pb2.NODE_STATE_STOPPING,  # READY once its next port is reserved
}
"""The state of a node in each stage of its round. Without a round it is READY."""
_MILESTONES = {
    Milestone.IMPORTED: worker_pb2.MILESTONE_IMPORTED,
    Milestone.PROCESS_GROUP: worker_pb2.MILESTONE_PROCESS_GROUP,
}
_GOODBYES = {
    GoodbyeKind.FINISHED: agent_pb2.GOODBYE_REASON_FINISHED,
    GoodbyeKind.RELEASED: agent_pb2.GOODBYE_REASON_RELEASED,
    GoodbyeKind.SIGNAL: agent_pb2.GOODBYE_REASON_SIGNAL,
    GoodbyeKind.DRAINED: agent_pb2.GOODBYE_REASON_RELEASED,
    GoodbyeKind.ERROR: agent_pb2.GOODBYE_REASON_ERROR,
}
OUTCOME_TEXTS = {
    job_pb2.OUTCOME_SUCCEEDED: "the job succeeded",
    job_pb2.OUTCOME_FAILED: "the job failed",
    job_pb2.OUTCOME_ABANDONED: "the job was abandoned",
    job_pb2.OUTCOME_CANCELLED: "the job was cancelled",
}
_EXIT_CODES = {job_pb2.OUTCOME_SUCCEEDED: 0, job_pb2.OUTCOME_CANCELLED: EXIT_CANCELLED}
"""After other outcomes the job has failed."""


def fill_snapshot(hello: agent_pb2.Hello, state: AgentState, now_ms: int) -> None:
    """Write into a Hello everything that the node holds now.

    A round whose exits are not acknowledged counts as held: they follow, and Ready after them. The
    coordinator would settle the round without them if the Hello reported a clean node.
    """
    hello.reports_acknowledged = state.acknowledged
    hello.revision_applied = state.revision
    if state.drain is not None:
        hello.draining.CopyFrom(_draining(state.drain.until_ms, state.drain.reason, now_ms))
    held = state.held or state.unheard
    if held is not None:
        hello.held.CopyFrom(_held_message(held, now_ms))
        limit_texts(hello.held.workers)
    else:
        hello.ready.CopyFrom(agent_pb2.Ready(round=state.last_round, master_port=state.port))


def _draining(until_ms: int, reason: str, now_ms: int) -> agent_pb2.Draining:
    left = to_duration(max(0, until_ms - now_ms))
    return agent_pb2.Draining(time_left=left, reason=_limited(reason))


def _held_message(held: HeldRound, now_ms: int) -> agent_pb2.HeldRound:
    return agent_pb2.HeldRound(
        order=_order_message(held.order),
        state=_NODE_STATES[held.stage],
        workers=[_held_worker(worker, now_ms) for worker in held.workers],
        start_failure=None if held.start_failure is None else _limited(held.start_failure),
        milestones=[
            _milestone(one, at_ms, now_ms)
            for one in Milestone
            if (at_ms := held.reached_ms(one)) is not None
        ],
    )


def _milestone(milestone: Milestone, at_ms: int, now_ms: int) -> worker_pb2.MilestoneReached:
    age = to_duration(max(0, now_ms - at_ms))
    return worker_pb2.MilestoneReached(milestone=_MILESTONES[milestone], age=age)


def _held_worker(worker: LocalWorker, now_ms: int) -> node_pb2.Worker:
    """Return a worker of the held round; one that could not be started has no exit."""
    if worker.pid == 0:
        pending = node_pb2.WORKER_STATE_PENDING
        return node_pb2.Worker(local_rank=worker.local_rank, state=pending)
    return worker_message(worker, now_ms)


def _order_message(order: RunOrder) -> agent_pb2.RunOrder:
    header, assignment = order.header, order.assignment
    return agent_pb2.RunOrder(
        header=round_pb2.RoundHeader(
            number=header.number,
            run=header.run,
            world_size=header.world_size,
            group_world_size=header.group_world_size,
            master_addr=header.master_addr,
            master_port=header.master_port,
            restart_count=header.restart_count,
            reason=round_pb2.RoundReason.ValueType(header.reason),
            epoch=header.epoch,
        ),
        assignment=round_pb2.Assignment(
            group_rank=assignment.group_rank,
            first_rank=assignment.first_rank,
            local_world_size=assignment.local_world_size,
            role=assignment.role,
            first_role_rank=assignment.first_role_rank,
            role_world_size=assignment.role_world_size,
        ),
        max_restarts=order.max_restarts,
        worker_token=order.worker_token,
    )


def worker_message(worker: LocalWorker, now_ms: int) -> node_pb2.Worker:
    """Return a worker, with its exit if it has ended or failed; without its global rank."""
    message = node_pb2.Worker(local_rank=worker.local_rank, pid=worker.pid)
    if worker.exit is not None:
        message.state = node_pb2.WORKER_STATE_EXITED
    else:
        running = node_pb2.WORKER_STATE_RUNNING
        message.state = running if worker.pid else node_pb2.WORKER_STATE_PENDING
    exit = worker.outcome
    if exit is None:
        return message
    message.exit.CopyFrom(
        node_pb2.WorkerExit(
            exit_code=exit.exit_code,
            signal=exit.signal,
            agent_signalled_first=exit.signalled_first,
            age=to_duration(max(0, now_ms - exit.at_ms)),
            stderr_tail=exit.stderr_tail,
            run_time=to_duration(max(0, exit.at_ms - worker.started_ms) if worker.pid else 0),
            oom_killed=exit.oom_killed,
            failed_at=None if exit.failed_ms is None else to_timestamp(exit.failed_ms),
            error_file=_limited(exit.error_file),
            stderr_file=_limited(exit.stderr_file),
        )
    )
    if exit.signalled_before_ms is not None:
        message.exit.outlived_signal_for.CopyFrom(to_duration(exit.signalled_before_ms))
    if exit.error is not None:
        before_ms = exit.error.before_exit_ms
        message.exit.error.CopyFrom(
            node_pb2.ErrorRecord(
                message=exit.error.message,
                traceback=exit.error.traceback,
                age_at_exit=None if before_ms is None else to_duration(before_ms),
            )
        )
    return message


def report_message(  # noqa: C901  # one flat case per report
    report: Report, now_ms: int
) -> agent_pb2.SessionRequest:
    """Return a report; the link adds session, connection, sequence and epoch."""
    match report:
        case DrainingReport(until_ms=until_ms, reason=reason):
            return agent_pb2.SessionRequest(draining=_draining(until_ms, reason, now_ms))
        case ReadyReport(round=number, port=port):
            ready = agent_pb2.Ready(round=number, master_port=port)
            return agent_pb2.SessionRequest(ready=ready)
        case StartedReport(round=number, pids=pids):
            return agent_pb2.SessionRequest(started=agent_pb2.Started(round=number, pids=pids))
        case ReachedReport(round=number, milestone=milestone, at_ms=at_ms):
            milestones = [_milestone(milestone, at_ms, now_ms)]
            reached = agent_pb2.Reached(round=number, milestones=milestones)
            return agent_pb2.SessionRequest(reached=reached)
        case StartFailedReport(round=number, text=text, is_permanent=is_permanent):
            start_failed = agent_pb2.StartFailed(
                round=number, text=_limited(text), is_permanent=is_permanent
            )
            return agent_pb2.SessionRequest(start_failed=start_failed)
        case LeavingReport(round=number, text=text):
            leaving = agent_pb2.Leaving(round=number, text=_limited(text))
            return agent_pb2.SessionRequest(leaving=leaving)
        case RecordedReport(round=number, worker=worker):
            recorded = agent_pb2.Recorded(round=number, workers=[worker_message(worker, now_ms)])
            return agent_pb2.SessionRequest(recorded=recorded)
        case ExitedReport(round=number, worker=worker):
            exited = agent_pb2.Exited(round=number, workers=[worker_message(worker, now_ms)])
            return agent_pb2.SessionRequest(exited=exited)
        case SucceededReport(round=number):
            return agent_pb2.SessionRequest(succeeded=agent_pb2.Succeeded(round=number))
        case BlockedReport(round=number, pids=pids, text=text):
            blocked = agent_pb2.Blocked(round=number, pids=pids, text=_limited(text))
            return agent_pb2.SessionRequest(blocked=blocked)
        case GoodbyeReport(kind=goodbye, text=text):
            message = agent_pb2.Goodbye(reason=_GOODBYES[goodbye], text=_limited(text))
            return agent_pb2.SessionRequest(goodbye=message)


def parse_desired(
    epoch: int, message: agent_pb2.DesiredState, now_ms: int
) -> inputs.DesiredReceived | None:
    """Return the desired state that was received now, or None for one that this version does not
    know.
    """
    desired = _parse_state(message)
    if desired is None:
        return None
    drain = None
    if message.HasField("drain"):
        drain = DesiredDrain(now_ms + to_ms(message.drain.time_left), message.drain.reason)
    return inputs.DesiredReceived(epoch, message.revision, desired, drain)


def _parse_state(message: agent_pb2.DesiredState) -> Desired | None:
    match message.WhichOneof("state"):
        case "run":
            return _parse_order(message.run)
        case "stop":
            stop = message.stop
            return DesiredStop(stop.round, to_ms(stop.shutdown_timeout), stop.text)
        case "standby":
            return DesiredStandby(message.standby.spare)
        case "released":
            drained = message.released.reason == agent_pb2.RELEASED_REASON_DRAINED
            text = f"released: {to_printable_line(message.released.text)}"
            return DesiredEnd(0 if drained else EXIT_FAILED, text, is_release=True)
        case "finished":
            text = OUTCOME_TEXTS.get(message.finished.outcome, "the job ended")
            failed = EXIT_NO_REQUEUE if message.finished.no_requeue else EXIT_FAILED
            return DesiredEnd(_EXIT_CODES.get(message.finished.outcome, failed), text)
        case _:
            return None


def _parse_order(order: agent_pb2.RunOrder) -> RunOrder:
    header, assignment = order.header, order.assignment
    return RunOrder(
        header=RoundHeader(
            number=header.number,
            run=header.run,
            world_size=header.world_size,
            group_world_size=header.group_world_size,
            master_addr=header.master_addr,
            master_port=header.master_port,
            restart_count=header.restart_count,
            reason=header.reason,
            epoch=header.epoch,
        ),
        assignment=Assignment(
            group_rank=assignment.group_rank,
            first_rank=assignment.first_rank,
            local_world_size=assignment.local_world_size,
            role=assignment.role,
            first_role_rank=assignment.first_role_rank,
            role_world_size=assignment.role_world_size,
        ),
        max_restarts=order.max_restarts,
        worker_token=order.worker_token,
        reached_at=tuple(order.reached_at),
    )


def find_misfit(desired: Desired, workers: int) -> str:
    """Return why a node with so many workers cannot do what is desired; empty: it can."""
    if not isinstance(desired, RunOrder) or desired.assignment.local_world_size == workers:
        return ""
    ordered = desired.assignment.local_world_size
    return f"round {desired.number} wants {ordered} workers here; this node has {workers}"


def _limited(text: str) -> str:
    return text[:TEXT_CHARS_MAX]


def parse_notices(message: agent_pb2.Notices, now_ms: int) -> tuple[Notice, ...]:
    """Return the notices, without kinds that this version does not know."""
    kinds = {job_pb2.NOTICE_KIND_GROWTH: "growth", job_pb2.NOTICE_KIND_DRAIN: "drain"}
    return tuple(
        Notice(
            kinds[notice.kind],
            notice.node_name,
            notice.reason,
            now_ms + to_ms(notice.time_left),
        )
        for notice in message.notices
        if notice.kind in kinds
    )
