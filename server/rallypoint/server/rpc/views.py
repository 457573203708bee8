"""The core's values as messages: what agents are told and what readers see."""

from __future__ import annotations

from functools import lru_cache

from google.protobuf.duration_pb2 import Duration

from rallypoint.server.core.deadlines import DeadlineKind
from rallypoint.server.core.effects import (
    Desired,
    DesiredFinished,
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
    Notify,
    Send,
)
from rallypoint.server.core.explain import Waiting, explain
from rallypoint.server.core.failures import describe_consequence
from rallypoint.server.core.folding import shared_error
from rallypoint.server.core.health import describe, find_health, is_notable, recent_failures
from rallypoint.server.core.model import (
    Activity,
    Assignment,
    Consequence,
    Departure,
    FailedWorker,
    FailureGroup,
    Job,
    JobSpec,
    NodeHealth,
    NoticeOf,
    Outcome,
    Phase,
    Round,
    RoundHeader,
    RoundReason,
    RoundSummary,
    Verdict,
    VerdictCause,
    WaitKind,
    WorkerExit,
)
from rallypoint.server.core.node import Node
from rallypoint.server.core.state import State
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, round_pb2, verdict_pb2
from rallypoint.wire.durations import to_duration, to_timestamp

PHASES = {
    Phase.FORMING: job_pb2.JOB_PHASE_FORMING,
    Phase.RUNNING: job_pb2.JOB_PHASE_RUNNING,
    Phase.STOPPING: job_pb2.JOB_PHASE_STOPPING,
    Phase.CLOSED: job_pb2.JOB_PHASE_CLOSED,
}
OUTCOMES = {
    Outcome.SUCCEEDED: job_pb2.OUTCOME_SUCCEEDED,
    Outcome.FAILED: job_pb2.OUTCOME_FAILED,
    Outcome.CANCELLED: job_pb2.OUTCOME_CANCELLED,
    Outcome.ABANDONED: job_pb2.OUTCOME_ABANDONED,
}
WAITS = {
    WaitKind.REATTACH: job_pb2.WAIT_KIND_REATTACH,
    WaitKind.NODES: job_pb2.WAIT_KIND_NODES,
    WaitKind.LAST_CALL: job_pb2.WAIT_KIND_LAST_CALL,
    WaitKind.RETURNING: job_pb2.WAIT_KIND_RETURNING,
    WaitKind.BACKOFF: job_pb2.WAIT_KIND_BACKOFF,
    WaitKind.START: job_pb2.WAIT_KIND_START,
    WaitKind.STOP: job_pb2.WAIT_KIND_STOP,
    WaitKind.GROWTH: job_pb2.WAIT_KIND_GROWTH,
    WaitKind.FAREWELL: job_pb2.WAIT_KIND_FAREWELL,
    WaitKind.DRAIN: job_pb2.WAIT_KIND_DRAIN,
    WaitKind.FENCE: job_pb2.WAIT_KIND_FENCE,
    WaitKind.PATH: job_pb2.WAIT_KIND_PATH,
}
REASONS = {
    RoundReason.UNKNOWN: round_pb2.ROUND_REASON_UNSPECIFIED,
    RoundReason.FIRST: round_pb2.ROUND_REASON_FIRST,
    RoundReason.WORKER_FAILED: round_pb2.ROUND_REASON_WORKER_FAILED,
    RoundReason.NODE_LOST: round_pb2.ROUND_REASON_NODE_LOST,
    RoundReason.NODE_LEFT: round_pb2.ROUND_REASON_NODE_LEFT,
    RoundReason.GROWTH: round_pb2.ROUND_REASON_GROWTH,
    RoundReason.START_OVERDUE: round_pb2.ROUND_REASON_START_OVERDUE,
    RoundReason.SUCCEEDED: round_pb2.ROUND_REASON_SUCCEEDED,
    RoundReason.CLOSED: round_pb2.ROUND_REASON_CLOSED,
    RoundReason.DRAINED: round_pb2.ROUND_REASON_DRAINED,
}
CAUSES = {
    VerdictCause.WORKER_FAILED: verdict_pb2.VERDICT_CAUSE_WORKER_FAILED,
    VerdictCause.NODE_LOST: verdict_pb2.VERDICT_CAUSE_NODE_LOST,
    VerdictCause.NODE_LEFT: verdict_pb2.VERDICT_CAUSE_NODE_LEFT,
    VerdictCause.START_OVERDUE: verdict_pb2.VERDICT_CAUSE_START_OVERDUE,
    VerdictCause.CANNOT_START: verdict_pb2.VERDICT_CAUSE_CANNOT_START,
    VerdictCause.TOO_FEW_NODES: verdict_pb2.VERDICT_CAUSE_TOO_FEW_NODES,
    VerdictCause.NO_PROGRESS: verdict_pb2.VERDICT_CAUSE_NO_PROGRESS,
    VerdictCause.INTERNAL: verdict_pb2.VERDICT_CAUSE_INTERNAL,
}
CONSEQUENCES = {
    Consequence.UNDECIDED: verdict_pb2.VERDICT_CONSEQUENCE_UNSPECIFIED,
    Consequence.RESTARTED: verdict_pb2.VERDICT_CONSEQUENCE_RESTARTED,
    Consequence.REFORMED: verdict_pb2.VERDICT_CONSEQUENCE_REFORMED,
    Consequence.BUDGET_SPENT: verdict_pb2.VERDICT_CONSEQUENCE_BUDGET_SPENT,
    Consequence.CRASH_LOOP: verdict_pb2.VERDICT_CONSEQUENCE_CRASH_LOOP,
    Consequence.NOT_RETRYABLE: verdict_pb2.VERDICT_CONSEQUENCE_NOT_RETRYABLE,
    Consequence.NO_REQUEUE: verdict_pb2.VERDICT_CONSEQUENCE_NO_REQUEUE,
    Consequence.ENDED: verdict_pb2.VERDICT_CONSEQUENCE_ENDED,
}
STATES = {
    Activity.UNREADY: node_pb2.NODE_STATE_UNREADY,
    Activity.READY: node_pb2.NODE_STATE_READY,
    Activity.ASSIGNED: node_pb2.NODE_STATE_ASSIGNED,
    Activity.STARTED: node_pb2.NODE_STATE_STARTED,
    Activity.SUCCEEDED: node_pb2.NODE_STATE_SUCCEEDED,
    Activity.FAILED: node_pb2.NODE_STATE_FAILED,
    Activity.BLOCKED: node_pb2.NODE_STATE_BLOCKED,
}


SHARED_MAX = 64
"""Rounds whose messages are kept while they are told to one node after the other."""


def _optional_duration(ms: int | None) -> Duration | None:
    return None if ms is None else to_duration(ms)


# --- What agents are told ---------------------------------------------------------------------


def desired_message(send: Send) -> agent_pb2.DesiredState:
    """Return the desired state of one node."""
    message = agent_pb2.DesiredState(revision=send.revision)
    _fill_desired(message, send.desired)
    return message


def _fill_desired(message: agent_pb2.DesiredState, desired: Desired) -> None:
    match desired:
        case DesiredRun(header=header, assignment=assignment, max_restarts=max_restarts):
            assert isinstance(assignment, Assignment)
            message.run.header.CopyFrom(header_message(header))
            message.run.assignment.CopyFrom(assignment_message(assignment))
            message.run.max_restarts = max_restarts
        case DesiredStop():
            message.stop.CopyFrom(_stop_message(desired))
        case DesiredStandby(spare=spare):
            message.standby.CopyFrom(agent_pb2.Standby(spare=spare))
        case DesiredReleased(text=text):
            reason_drained = agent_pb2.RELEASED_REASON_DRAINED
            message.released.CopyFrom(agent_pb2.Released(reason=reason_drained, text=text))
        case DesiredFinished(outcome=outcome, verdict=verdict):
            message.finished.CopyFrom(
                agent_pb2.Finished(
                    outcome=OUTCOMES[outcome],
                    verdict=None if verdict is None else verdict_message(verdict),
                    restart_count=desired.restart_count,
                    round=desired.round,
                    no_requeue=verdict is not None
                    and verdict.consequence is Consequence.NO_REQUEUE,
                )
            )


@lru_cache(maxsize=SHARED_MAX)
def _stop_message(stop: DesiredStop) -> agent_pb2.Stop:
    return agent_pb2.Stop(
        round=stop.round,
        reason=REASONS[stop.reason],
        grace=to_duration(stop.grace_ms),
        text=stop.text,
    )


@lru_cache(maxsize=SHARED_MAX)
def header_message(header: RoundHeader) -> round_pb2.RoundHeader:
    """Return what all members of a round share; a message to copy, not to change."""
    return round_pb2.RoundHeader(
        number=header.number,
        run=header.run,
        world_size=header.world_size,
        group_world_size=header.group_world_size,
        master_addr=header.master_addr,
        master_port=header.master_port,
        restart_count=header.restart_count,
        reason=REASONS[header.reason],
        epoch=header.epoch,
    )


def assignment_message(assignment: Assignment) -> round_pb2.Assignment:
    """Return a node's place."""
    return round_pb2.Assignment(
        group_rank=assignment.group_rank,
        first_rank=assignment.first_rank,
        local_world_size=assignment.local_world_size,
        role=assignment.role,
        first_role_rank=assignment.first_role_rank,
        role_world_size=assignment.role_world_size,
    )


def verdict_message(verdict: Verdict) -> verdict_pb2.Verdict:
    """Return a verdict; collateral failures without their output."""
    then = describe_consequence(verdict)
    return verdict_pb2.Verdict(
        cause=CAUSES[verdict.cause],
        round=verdict.round,
        node_name=verdict.name or "",
        culprit=None if verdict.culprit is None else _failed_message(verdict.culprit, whole=True),
        collateral=[_failed_message(worker, whole=False) for worker in verdict.collateral],
        collateral_count=verdict.collateral_count,
        consequence=CONSEQUENCES[verdict.consequence],
        text=f"{verdict.text}; {then}" if then else verdict.text,
        consequence_text=then,
        groups=[_group_message(group) for group in verdict.groups],
        evidence=verdict.evidence,
    )


def _group_message(group: FailureGroup) -> verdict_pb2.FailureGroup:
    return verdict_pb2.FailureGroup(
        ranks=[verdict_pb2.RankRange(first=first, last=last) for first, last in group.ranks],
        count=group.count,
        exit=group.key[0],
        error=shared_error(group),
        victim=group.is_victim,
    )


def _failed_message(worker: FailedWorker, *, whole: bool) -> verdict_pb2.FailedWorker:
    return verdict_pb2.FailedWorker(
        node_name=worker.name,
        rank=worker.rank,
        local_rank=worker.exit.local_rank,
        pid=worker.exit.pid,
        host_name=worker.host,
        exit=_exit_message(worker.exit, whole=whole),
    )


def _exit_message(exit: WorkerExit, *, whole: bool) -> node_pb2.WorkerExit:
    message = node_pb2.WorkerExit(
        exit_code=exit.exit_code,
        signal=exit.signal,
        agent_signalled_first=exit.agent_signalled_first,
        ago=to_duration(exit.ago_ms),
        ran=to_duration(exit.ran_ms),
        signalled_before=_optional_duration(exit.signalled_before_ms),
        oom_killed=exit.oom_killed,
        time=None if exit.failed_ms is None else to_timestamp(exit.failed_ms),
    )
    if whole:
        message.error_file = exit.error_file
        message.stderr_tail = exit.stderr_tail
    if whole and exit.error is not None:
        message.error.CopyFrom(
            node_pb2.ErrorRecord(
                message=exit.error.message,
                traceback=exit.error.traceback,
                before_exit=_optional_duration(exit.error.before_exit_ms),
            )
        )
    return message


def notice_message(notice: NoticeOf, left_ms: int) -> job_pb2.Notice:
    """Return what is about to happen, and when at the latest."""
    drains = notice.name is not None
    return job_pb2.Notice(
        kind=job_pb2.NOTICE_KIND_DRAIN if drains else job_pb2.NOTICE_KIND_GROWTH,
        time_left=to_duration(left_ms),
        node_name=notice.name or "",
        reason=notice.reason,
    )


def notices_message(notify: Notify) -> agent_pb2.Notices:
    """Return everything that a node is told to expect, soonest first."""
    soonest_first = sorted(notify.notices, key=lambda pair: pair[1])
    return agent_pb2.Notices(
        notices=[notice_message(notice, left_ms) for notice, left_ms in soonest_first]
    )


def waiting_message(waiting: Waiting) -> job_pb2.Waiting:
    """Return the explanation of a wait."""
    return job_pb2.Waiting(
        kind=WAITS[waiting.kind],
        ready_nodes=waiting.ready_nodes,
        needed_nodes=waiting.needed_nodes,
        nodes=[
            job_pb2.AwaitedNode(
                name=node.name, state=node.state, since=_optional_duration(node.since_ms)
            )
            for node in waiting.awaited
        ],
        time_left=_optional_duration(waiting.left_ms),
        text=waiting.text,
    )


# --- What readers see -------------------------------------------------------------------------


def job_message(state: State, job: Job, now_ms: int, *, whole: bool) -> job_pb2.Job:
    """Return a job; with `whole` also its nodes, its history and the members of its round."""
    waiting = explain(state, job, now_ms)
    message = job_pb2.Job(
        job_id=job.job_id,
        run=job.run,
        spec=spec_message(job.spec),
        phase=PHASES[job.phase],
        waiting=None if waiting is None else waiting_message(waiting),
        round=None if job.round is None else _round_message(job.round, now_ms, whole=whole),
        restart_count=job.restart_count,
        outcome=job_pb2.OUTCOME_UNSPECIFIED if job.outcome is None else OUTCOMES[job.outcome],
        verdict=None if job.verdict is None else verdict_message(job.verdict),
        age=to_duration(now_ms - job.opened_ms),
        lost=[_lost_message(departure, now_ms) for departure in job.lost],
        notices=[
            notice_message(notice, max(0, notice.until_ms - now_ms))
            for notice in (job.round.notices if job.phase is Phase.RUNNING and job.round else ())
        ],
    )
    if whole:
        message.health.extend(
            health_message(health, job.spec, now_ms)
            for health in job.health
            if is_notable(health, job.spec, now_ms)
        )
        for session in state.sessions.get(job.job_id, ()):
            message.nodes.append(_node_message(state, job, state.nodes[session], now_ms))
        message.history.extend(_summary_message(summary) for summary in job.history)
    return message


def spec_message(spec: JobSpec) -> job_pb2.JobSpec:
    """Return a specification with every default filled in."""
    return job_pb2.JobSpec(
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        max_restarts=spec.max_restarts,
        join_timeout=to_duration(spec.join_timeout_ms),
        last_call=to_duration(spec.last_call_ms),
        settle_time=to_duration(spec.settle_ms),
        grow_after=to_duration(spec.grow_after_ms),
        grow=spec.grow,
        grace=to_duration(spec.grace_ms),
        restart_backoff=to_duration(spec.restart_backoff_ms),
        fence_after=_asked(spec.fence_ms),
        no_retry_exit_codes=spec.no_retry,
        no_requeue_exit_codes=spec.no_requeue,
        quarantine_after=spec.quarantine_after,
        quarantine_window=to_duration(spec.quarantine_window_ms),
        quarantine_cooldown=to_duration(spec.quarantine_cooldown_ms),
        max_reformations=spec.max_reformations,
        crash_loop=spec.crash_loop,
        progress_after=to_duration(spec.progress_ms),
        heartbeat_interval=_asked(spec.heartbeat_interval_ms),
        lease=_asked(spec.lease_ms),
    )


def _asked(ms: int) -> Duration | None:
    """Return what a job asked for; None for what it left to the coordinator."""
    return to_duration(ms) if ms else None


def _lost_message(departure: Departure, now_ms: int) -> job_pb2.AwaitedNode:
    return job_pb2.AwaitedNode(
        name=departure.name, state=departure.text, since=to_duration(now_ms - departure.at_ms)
    )


def _round_message(round: Round, now_ms: int, *, whole: bool) -> round_pb2.Round:
    started_ms = round.started_ms
    message = round_pb2.Round(
        header=header_message(round.header),
        age=to_duration(now_ms - round.sealed_ms),
        started_after=_optional_duration(
            None if started_ms is None else started_ms - round.sealed_ms
        ),
    )
    if whole:
        for member in round.members:
            message.members.add(
                node_name=member.name, assignment=assignment_message(member.assignment)
            )
    return message


def _summary_message(summary: RoundSummary) -> round_pb2.RoundSummary:
    return round_pb2.RoundSummary(
        number=summary.number,
        began=REASONS[summary.began],
        ended=REASONS[summary.ended],
        node_names=summary.names,
        group_world_size=summary.group_world_size,
        world_size=summary.world_size,
        restart_count=summary.restart_count,
        started_after=_optional_duration(summary.started_after_ms),
        lasted=to_duration(summary.lasted_ms),
        recovered_after=_optional_duration(summary.recovered_after_ms),
    )


def _node_message(state: State, job: Job, node: Node, now_ms: int) -> node_pb2.Node:
    ends_ms = state.deadlines.get((DeadlineKind.LEASE, node.session))
    lease_ms = state.lease_ms(node.identity.spec)
    silent_ms = 0 if ends_ms is None else max(0, now_ms - (ends_ms - lease_ms))
    if node.broke_ms is not None:
        silent_ms = now_ms - node.broke_ms
    assignment = node.assignment
    shown = STATES[node.activity]
    if node.member and job.phase is Phase.STOPPING and node.activity is not Activity.READY:
        shown = node_pb2.NODE_STATE_STOPPING
    message = node_pb2.Node(
        name=node.name,
        session_id=node.session,
        state=shown,
        attached=node.attached,
        address=node.identity.address,
        host_name=node.identity.host_name,
        local_world_size=node.identity.local_world_size,
        role=node.identity.role,
        labels=dict(node.identity.labels),
        assignment=None if assignment is None else assignment_message(assignment),
        spare=job.phase is Phase.RUNNING and node.is_eligible and not node.member,
        silent=to_duration(silent_ms),
        draining=None if node.drain is None else to_duration(max(0, node.drain.until_ms - now_ms)),
    )
    health = find_health(job.health, node.name)
    if is_notable(health, job.spec, now_ms):
        message.health.CopyFrom(health_message(health, job.spec, now_ms))
    if assignment is not None:
        message.workers.extend(_worker_messages(node, assignment))
    return message


def health_message(health: NodeHealth, spec: JobSpec, now_ms: int) -> node_pb2.NodeHealth:
    """Return what a job knows of the health of a node."""
    left_ms = health.quarantined_until_ms - now_ms
    return node_pb2.NodeHealth(
        node_name=health.name,
        failures=len(recent_failures(health, spec, now_ms)),
        quarantined=to_duration(left_ms) if left_ms > 0 else None,
        quarantines=health.quarantines,
        cordoned=health.cordoned,
        reason=health.reason,
    )


def set_aside_message(job: Job, node: Node, now_ms: int) -> job_pb2.Waiting:
    """Return why a round that runs has no place for a node that is set aside."""
    health = find_health(job.health, node.name)
    why = describe(health, now_ms)
    left_ms = health.quarantined_until_ms - now_ms
    text = f"this node is set aside: {why}"
    if not health.cordoned:
        text += f"; {health.reason}"
    return job_pb2.Waiting(
        nodes=[job_pb2.AwaitedNode(name=node.name, state=why)],
        time_left=None if health.cordoned else to_duration(max(0, left_ms)),
        text=text,
    )


def _worker_messages(node: Node, assignment: Assignment) -> list[node_pb2.Worker]:
    exits = {exit.local_rank: exit for exit in node.exits}
    workers: list[node_pb2.Worker] = []
    for local_rank in range(assignment.local_world_size):
        worker = node_pb2.Worker(local_rank=local_rank, rank=assignment.first_rank + local_rank)
        exit = exits.get(local_rank)
        if local_rank < len(node.pids):
            worker.pid = node.pids[local_rank]
        if exit is not None:
            worker.state = node_pb2.WORKER_STATE_EXITED
            worker.exit.CopyFrom(_exit_message(exit, whole=False))
        elif node.pids and node.activity is not Activity.READY:
            worker.state = node_pb2.WORKER_STATE_RUNNING
        else:
            worker.state = node_pb2.WORKER_STATE_PENDING
        workers.append(worker)
    return workers
