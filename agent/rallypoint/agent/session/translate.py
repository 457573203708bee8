"""The agent's words as messages, and the coordinator's messages as words."""

from __future__ import annotations

from rallypoint.agent.core.model import (
    AgentState,
    BlockedReport,
    Desired,
    DesiredEnd,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
    DrainingReport,
    ExitedReport,
    GoodbyeKind,
    GoodbyeReport,
    Held,
    LocalWorker,
    Notice,
    ReadyReport,
    RefusedReport,
    Report,
    RunOrder,
    Stage,
    StartedReport,
    SucceededReport,
)
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, round_pb2
from rallypoint.wire.durations import to_duration, to_ms, to_timestamp

_STAGES = {
    Stage.STARTING: node_pb2.NODE_STATE_ASSIGNED,
    Stage.RUNNING: node_pb2.NODE_STATE_STARTED,
    Stage.SUCCEEDED: node_pb2.NODE_STATE_SUCCEEDED,
    Stage.FAILED: node_pb2.NODE_STATE_FAILED,
    Stage.STOPPING: node_pb2.NODE_STATE_STOPPING,
    Stage.SWEEPING: node_pb2.NODE_STATE_STOPPING,
    Stage.BLOCKED: node_pb2.NODE_STATE_BLOCKED,
    Stage.CLEAN: node_pb2.NODE_STATE_STOPPING,
}
_GOODBYES = {
    GoodbyeKind.FINISHED: agent_pb2.GOODBYE_REASON_FINISHED,
    GoodbyeKind.RELEASED: agent_pb2.GOODBYE_REASON_RELEASED,
    GoodbyeKind.SIGNAL: agent_pb2.GOODBYE_REASON_SIGNAL,
    GoodbyeKind.DRAINED: agent_pb2.GOODBYE_REASON_RELEASED,
    GoodbyeKind.ERROR: agent_pb2.GOODBYE_REASON_ERROR,
}
_TEXT_CHARS_MAX = 1_024
EXIT_FAILED = 1
EXIT_NO_REQUEUE = 93
"""A number that neither shells, Slurm nor sysexits.h use: a scheduler can act on it."""


def fill_snapshot(hello: agent_pb2.Hello, state: AgentState, now_ms: int) -> None:
    """Write into a Hello everything that the node holds."""
    hello.reports_acknowledged = state.acknowledged
    hello.revision_applied = state.revision
    if state.drain is not None:
        hello.draining.CopyFrom(_draining(state.drain.until_ms, state.drain.reason, now_ms))
    if state.held is not None:
        hello.held.CopyFrom(_held_message(state.held, now_ms))
    else:
        hello.ready.CopyFrom(agent_pb2.Ready(round=state.last_round, master_port=state.port))


def _draining(until_ms: int, reason: str, now_ms: int) -> agent_pb2.Draining:
    left = to_duration(max(0, until_ms - now_ms))
    return agent_pb2.Draining(time_left=left, reason=reason[:_TEXT_CHARS_MAX])


def _held_message(held: Held, now_ms: int) -> agent_pb2.HeldRound:
    order = held.order
    return agent_pb2.HeldRound(
        header=round_pb2.RoundHeader(
            number=order.number,
            run=order.run,
            world_size=order.world_size,
            group_world_size=order.group_world_size,
            master_addr=order.master_addr,
            master_port=order.master_port,
            restart_count=order.restart_count,
            reason=round_pb2.RoundReason.ValueType(order.reason),
            epoch=order.epoch,
        ),
        assignment=round_pb2.Assignment(
            group_rank=order.group_rank,
            first_rank=order.first_rank,
            local_world_size=order.local_world_size,
            role=order.role,
            first_role_rank=order.first_role_rank,
            role_world_size=order.role_world_size,
        ),
        state=_STAGES[held.stage],
        workers=[worker_message(worker, now_ms) for worker in held.workers],
    )


def worker_message(worker: LocalWorker, now_ms: int) -> node_pb2.Worker:
    """Return a worker with its end, if it has ended; without a global rank."""
    message = node_pb2.Worker(local_rank=worker.local_rank, pid=worker.pid)
    exit = worker.exit
    if exit is None:
        running = node_pb2.WORKER_STATE_RUNNING
        message.state = running if worker.pid else node_pb2.WORKER_STATE_PENDING
        return message
    message.state = node_pb2.WORKER_STATE_EXITED
    message.exit.CopyFrom(
        node_pb2.WorkerExit(
            exit_code=exit.exit_code,
            signal=exit.signal,
            agent_signalled_first=exit.signalled_first,
            ago=to_duration(max(0, now_ms - exit.at_ms)),
            stderr_tail=exit.stderr_tail,
            ran=to_duration(max(0, exit.at_ms - worker.started_ms) if worker.pid else 0),
            oom_killed=exit.oom_killed,
            time=None if exit.failed_ms is None else to_timestamp(exit.failed_ms),
            error_file=exit.error_file[:_TEXT_CHARS_MAX],
        )
    )
    if exit.signalled_before_ms is not None:
        message.exit.signalled_before.CopyFrom(to_duration(exit.signalled_before_ms))
    if exit.error is not None:
        before_ms = exit.error.before_exit_ms
        message.exit.error.CopyFrom(
            node_pb2.ErrorRecord(
                message=exit.error.message,
                traceback=exit.error.traceback,
                before_exit=None if before_ms is None else to_duration(before_ms),
            )
        )
    return message


def report_message(report: Report, now_ms: int) -> agent_pb2.SessionRequest:
    """Return a report without its envelope's session, connection, sequence and epoch."""
    match report:
        case DrainingReport(until_ms=until_ms, reason=reason):
            return agent_pb2.SessionRequest(draining=_draining(until_ms, reason, now_ms))
        case ReadyReport(round=number, port=port):
            ready = agent_pb2.Ready(round=number, master_port=port)
            return agent_pb2.SessionRequest(ready=ready)
        case StartedReport(round=number, pids=pids):
            return agent_pb2.SessionRequest(started=agent_pb2.Started(round=number, pids=pids))
        case RefusedReport(round=number, leaving=leaving, text=text):
            kind = agent_pb2
            why = kind.REFUSED_REASON_LEAVING if leaving else kind.REFUSED_REASON_CANNOT_SPAWN
            refused = agent_pb2.Refused(round=number, reason=why, text=text[:_TEXT_CHARS_MAX])
            return agent_pb2.SessionRequest(refused=refused)
        case ExitedReport(round=number, worker=worker):
            exited = agent_pb2.Exited(round=number, workers=[worker_message(worker, now_ms)])
            return agent_pb2.SessionRequest(exited=exited)
        case SucceededReport(round=number):
            return agent_pb2.SessionRequest(succeeded=agent_pb2.Succeeded(round=number))
        case BlockedReport(round=number, pids=pids):
            return agent_pb2.SessionRequest(blocked=agent_pb2.Blocked(round=number, pids=pids))
        case GoodbyeReport(kind=goodbye, text=text):
            message = agent_pb2.Goodbye(reason=_GOODBYES[goodbye], text=text[:_TEXT_CHARS_MAX])
            return agent_pb2.SessionRequest(goodbye=message)


def parse_desired(message: agent_pb2.DesiredState) -> Desired | None:
    """Return what the node has to make true, or None for a state that this version has not."""
    match message.WhichOneof("state"):
        case "run":
            return DesiredRun(_parse_order(message.run))
        case "stop":
            stop = message.stop
            return DesiredStop(stop.round, to_ms(stop.grace), stop.text)
        case "standby":
            return DesiredStandby(message.standby.spare)
        case "released":
            drained = message.released.reason == agent_pb2.RELEASED_REASON_DRAINED
            text = f"released: {message.released.text}"
            return DesiredEnd(0 if drained else EXIT_FAILED, text, is_release=True)
        case "finished":
            succeeded = message.finished.outcome == job_pb2.OUTCOME_SUCCEEDED
            outcome = job_pb2.Outcome.Name(message.finished.outcome)
            word = outcome.removeprefix("OUTCOME_").lower()
            failed = EXIT_NO_REQUEUE if message.finished.no_requeue else EXIT_FAILED
            return DesiredEnd(0 if succeeded else failed, f"the job has {word}")
        case _:
            return None


def _parse_order(run: agent_pb2.Run) -> RunOrder:
    header, place = run.header, run.assignment
    return RunOrder(
        number=header.number,
        run=header.run,
        world_size=header.world_size,
        group_world_size=header.group_world_size,
        master_addr=header.master_addr,
        master_port=header.master_port,
        restart_count=header.restart_count,
        reason=header.reason,
        epoch=header.epoch,
        group_rank=place.group_rank,
        first_rank=place.first_rank,
        local_world_size=place.local_world_size,
        role=place.role,
        first_role_rank=place.first_role_rank,
        role_world_size=place.role_world_size,
        max_restarts=run.max_restarts,
    )


def parse_notices(message: agent_pb2.Notices, node_name: str, now_ms: int) -> tuple[Notice, ...]:
    """Return what is about to happen, without what this version does not know."""
    kinds = {job_pb2.NOTICE_KIND_GROWTH: "growth", job_pb2.NOTICE_KIND_DRAIN: "drain"}
    return tuple(
        Notice(
            kinds[notice.kind],
            notice.node_name,
            notice.reason,
            now_ms + to_ms(notice.time_left),
            is_here=notice.kind == job_pb2.NOTICE_KIND_DRAIN and notice.node_name == node_name,
        )
        for notice in message.notices
        if notice.kind in kinds
    )
