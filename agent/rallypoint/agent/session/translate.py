"""Translates between the values of the agent's core and the messages of the protocol."""

from __future__ import annotations

from typing import Any

from google.protobuf.duration_pb2 import Duration
from msgspec.structs import replace

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import (
    Desired,
    DesiredDrain,
    DesiredEnd,
    DesiredStandby,
    DesiredStop,
    Notice,
    RunOrder,
)
from rallypoint.agent.core.held_round import (
    ErrorRecord,
    HeldRound,
    LocalExit,
    LocalWorker,
    Milestone,
    Stage,
)
from rallypoint.agent.core.reports import (
    BlockedReport,
    DrainingReport,
    ExitedReport,
    GoodbyeKind,
    GoodbyeReport,
    LeavingReport,
    ProgressReport,
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
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.wire.durations import to_duration, to_ms
from rallypoint.wire.mapping import Mapper, numbers_of

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
_MILESTONES = numbers_of(Milestone, agent_pb2.Milestone.DESCRIPTOR)
_GOODBYES = numbers_of(
    GoodbyeKind, agent_pb2.GoodbyeReason.DESCRIPTOR, {GoodbyeKind.DRAINED: "RELEASED"}
)
OUTCOME_TEXTS = {
    job_pb2.OUTCOME_SUCCEEDED: "the job succeeded",
    job_pb2.OUTCOME_FAILED: "the job failed",
    job_pb2.OUTCOME_ABANDONED: "the job was abandoned",
    job_pb2.OUTCOME_CANCELLED: "the job was cancelled",
}
_EXIT_CODES = {job_pb2.OUTCOME_SUCCEEDED: 0, job_pb2.OUTCOME_CANCELLED: EXIT_CANCELLED}
"""After other outcomes the job has failed."""

_ORDER = Mapper(RunOrder, agent_pb2.RunOrder)
_STOP = Mapper(DesiredStop, agent_pb2.Stop, apart=("reason",))
_STANDBY = Mapper(DesiredStandby, agent_pb2.Standby)
_ERROR = Mapper(
    ErrorRecord, node_pb2.ErrorRecord, {"before_exit_ms": "age_at_exit"}, apart=("time_s",)
)
_EXIT = Mapper(
    LocalExit,
    node_pb2.WorkerExit,
    {
        "signalled_first": "agent_signalled_first",
        "signalled_before_ms": "outlived_signal_for",
        "failed_ms": "failed_at",
    },
    apart=("at_ms", "age", "run_time"),
    nested=(_ERROR,),
)
_REPORTS: dict[type[Report], tuple[str, Mapper[Any, Any]]] = {
    ReadyReport: ("ready", Mapper(ReadyReport, agent_pb2.Ready, {"port": "master_port"})),
    StartedReport: ("started", Mapper(StartedReport, agent_pb2.Started)),
    StartFailedReport: ("start_failed", Mapper(StartFailedReport, agent_pb2.StartFailed)),
    LeavingReport: ("leaving", Mapper(LeavingReport, agent_pb2.Leaving)),
    SucceededReport: ("succeeded", Mapper(SucceededReport, agent_pb2.Succeeded)),
    BlockedReport: ("blocked", Mapper(BlockedReport, agent_pb2.Blocked)),
}
"""The arm and the mapper of each report that says the same as its message."""


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
        order=_ORDER.encode(held.order),
        state=_NODE_STATES[held.stage],
        workers=[_held_worker(worker, now_ms) for worker in held.workers],
        start_failure=None if held.start_failure is None else _limited(held.start_failure),
        milestones=[
            _milestone(one, at_ms, now_ms)
            for one in Milestone
            if (at_ms := held.reached_ms(one)) is not None
        ],
        still_for=_still_for(held.still_since_ms, now_ms),
    )


def _still_for(since_ms: int | None, now_ms: int) -> Duration | None:
    return None if since_ms is None else to_duration(max(0, now_ms - since_ms))


def _milestone(milestone: Milestone, at_ms: int, now_ms: int) -> agent_pb2.MilestoneReached:
    age = to_duration(max(0, now_ms - at_ms))
    return agent_pb2.MilestoneReached(milestone=_MILESTONES[milestone], age=age)


def _held_worker(worker: LocalWorker, now_ms: int) -> node_pb2.Worker:
    """Return a worker of the held round; one that could not be started has no exit."""
    if worker.pid == 0:
        pending = node_pb2.WORKER_STATE_PENDING
        return node_pb2.Worker(local_rank=worker.local_rank, state=pending)
    return worker_message(worker, now_ms)


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
    files = {"error_file": _limited(exit.error_file), "stderr_file": _limited(exit.stderr_file)}
    run_ms = max(0, exit.at_ms - worker.started_ms) if worker.pid else 0
    age = to_duration(max(0, now_ms - exit.at_ms))
    message.exit.CopyFrom(
        _EXIT.to_message(replace(exit, **files), age=age, run_time=to_duration(run_ms))
    )
    return message


def report_message(report: Report, now_ms: int) -> agent_pb2.SessionRequest:
    """Return a report; the link adds session, connection, sequence and epoch."""
    match report:
        case DrainingReport(until_ms=until_ms, reason=reason):
            return agent_pb2.SessionRequest(draining=_draining(until_ms, reason, now_ms))
        case ReachedReport(round=number, milestone=milestone, at_ms=at_ms):
            milestones = [_milestone(milestone, at_ms, now_ms)]
            reached = agent_pb2.Reached(round=number, milestones=milestones)
            return agent_pb2.SessionRequest(reached=reached)
        case ProgressReport(round=number, still_since_ms=since_ms):
            still_for = _still_for(since_ms, now_ms)
            progress = agent_pb2.Progress(round=number, still_for=still_for)
            return agent_pb2.SessionRequest(progress=progress)
        case RecordedReport(round=number, worker=worker):
            recorded = agent_pb2.Recorded(round=number, workers=[worker_message(worker, now_ms)])
            return agent_pb2.SessionRequest(recorded=recorded)
        case ExitedReport(round=number, worker=worker):
            exited = agent_pb2.Exited(round=number, workers=[worker_message(worker, now_ms)])
            return agent_pb2.SessionRequest(exited=exited)
        case GoodbyeReport(kind=goodbye, text=text):
            message = agent_pb2.Goodbye(reason=_GOODBYES[goodbye], text=_limited(text))
            return agent_pb2.SessionRequest(goodbye=message)
        case _:
            arm, mapper = _REPORTS[type(report)]
            said = mapper.encode(report)
            if "text" in said:
                said["text"] = _limited(said["text"])
            return agent_pb2.SessionRequest(**{arm: said})


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
            return _ORDER.to_struct(message.run)
        case "stop":
            return _STOP.to_struct(message.stop)
        case "standby":
            return _STANDBY.to_struct(message.standby)
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
