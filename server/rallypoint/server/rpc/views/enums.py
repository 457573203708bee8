"""Maps the core's enums to those of the protocol."""

from __future__ import annotations

from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.core.reads.explain import AwaitedState
from rallypoint.v1 import error_details_pb2, job_pb2, node_pb2, round_pb2, verdict_pb2

PHASES = {
    Phase.FORMING: job_pb2.JOB_PHASE_FORMING,
    Phase.RUNNING: job_pb2.JOB_PHASE_RUNNING,
    Phase.STOPPING: job_pb2.JOB_PHASE_STOPPING,
    Phase.CLOSED: job_pb2.JOB_PHASE_CLOSED,
}
OUTCOMES = {
    Outcome.SUCCEEDED: job_pb2.OUTCOME_SUCCEEDED,
    Outcome.FAILED: job_pb2.OUTCOME_FAILED,
    Outcome.ABANDONED: job_pb2.OUTCOME_ABANDONED,
    Outcome.CANCELLED: job_pb2.OUTCOME_CANCELLED,
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
    WaitKind.NETWORK_SUSPECTED: job_pb2.WAIT_KIND_NETWORK_SUSPECTED,
    WaitKind.BARRIER: job_pb2.WAIT_KIND_BARRIER,
}
REASONS = {
    RoundReason.UNKNOWN: round_pb2.ROUND_REASON_UNKNOWN,
    RoundReason.FIRST: round_pb2.ROUND_REASON_FIRST,
    RoundReason.WORKER_FAILED: round_pb2.ROUND_REASON_WORKER_FAILED,
    RoundReason.NODE_LOST: round_pb2.ROUND_REASON_NODE_LOST,
    RoundReason.NODE_LEFT: round_pb2.ROUND_REASON_NODE_LEFT,
    RoundReason.GROWTH: round_pb2.ROUND_REASON_GROWTH,
    RoundReason.START_OVERDUE: round_pb2.ROUND_REASON_START_OVERDUE,
    RoundReason.SUCCEEDED: round_pb2.ROUND_REASON_SUCCEEDED,
    RoundReason.CLOSED: round_pb2.ROUND_REASON_CLOSED,
    RoundReason.DRAINED: round_pb2.ROUND_REASON_DRAINED,
    RoundReason.RESTART_REQUESTED: round_pb2.ROUND_REASON_RESTART_REQUESTED,
    RoundReason.RESIZED: round_pb2.ROUND_REASON_RESIZED,
}
DEPARTURES = {
    RoundReason.NODE_LOST: job_pb2.DEPARTURE_KIND_LOST,
    RoundReason.NODE_LEFT: job_pb2.DEPARTURE_KIND_LEFT,
    RoundReason.DRAINED: job_pb2.DEPARTURE_KIND_DRAINED,
}
CAUSES = {
    VerdictCause.WORKER_FAILED: verdict_pb2.VERDICT_CAUSE_WORKER_FAILED,
    VerdictCause.NODE_LOST: verdict_pb2.VERDICT_CAUSE_NODE_LOST,
    VerdictCause.NODE_LEFT: verdict_pb2.VERDICT_CAUSE_NODE_LEFT,
    VerdictCause.START_OVERDUE: verdict_pb2.VERDICT_CAUSE_START_OVERDUE,
    VerdictCause.START_FAILED: verdict_pb2.VERDICT_CAUSE_START_FAILED,
    VerdictCause.TOO_FEW_NODES: verdict_pb2.VERDICT_CAUSE_TOO_FEW_NODES,
    VerdictCause.NO_PROGRESS: verdict_pb2.VERDICT_CAUSE_NO_PROGRESS,
    VerdictCause.INTERNAL: verdict_pb2.VERDICT_CAUSE_INTERNAL,
    VerdictCause.CANCELLED: verdict_pb2.VERDICT_CAUSE_CANCELLED,
}
CONSEQUENCES = {
    Consequence.UNDECIDED: verdict_pb2.VERDICT_CONSEQUENCE_UNDECIDED,
    Consequence.RESTARTED: verdict_pb2.VERDICT_CONSEQUENCE_RESTARTED,
    Consequence.REFORMED: verdict_pb2.VERDICT_CONSEQUENCE_REFORMED,
    Consequence.BUDGET_SPENT: verdict_pb2.VERDICT_CONSEQUENCE_BUDGET_SPENT,
    Consequence.CRASH_LOOP: verdict_pb2.VERDICT_CONSEQUENCE_CRASH_LOOP,
    Consequence.NOT_RETRYABLE: verdict_pb2.VERDICT_CONSEQUENCE_NOT_RETRYABLE,
    Consequence.NO_REQUEUE: verdict_pb2.VERDICT_CONSEQUENCE_NO_REQUEUE,
    Consequence.ENDED: verdict_pb2.VERDICT_CONSEQUENCE_ENDED,
    Consequence.ABANDONED: verdict_pb2.VERDICT_CONSEQUENCE_ABANDONED,
}
STATES = {
    NodeState.UNREADY: node_pb2.NODE_STATE_UNREADY,
    NodeState.READY: node_pb2.NODE_STATE_READY,
    NodeState.ASSIGNED: node_pb2.NODE_STATE_ASSIGNED,
    NodeState.STARTED: node_pb2.NODE_STATE_STARTED,
    NodeState.SUCCEEDED: node_pb2.NODE_STATE_SUCCEEDED,
    NodeState.FAILED: node_pb2.NODE_STATE_FAILED,
    NodeState.BLOCKED: node_pb2.NODE_STATE_BLOCKED,
}
AWAITED = {
    AwaitedState.LOST: job_pb2.AWAITED_STATE_LOST,
    AwaitedState.LEFT: job_pb2.AWAITED_STATE_LEFT,
    AwaitedState.DISCONNECTED: job_pb2.AWAITED_STATE_DISCONNECTED,
    AwaitedState.NOT_STARTED: job_pb2.AWAITED_STATE_NOT_STARTED,
    AwaitedState.STOPPING: job_pb2.AWAITED_STATE_STOPPING,
    AwaitedState.BLOCKED: job_pb2.AWAITED_STATE_BLOCKED,
    AwaitedState.DRAINING: job_pb2.AWAITED_STATE_DRAINING,
    AwaitedState.FENCED: job_pb2.AWAITED_STATE_FENCED,
    AwaitedState.QUARANTINED: job_pb2.AWAITED_STATE_QUARANTINED,
    AwaitedState.CORDONED: job_pb2.AWAITED_STATE_CORDONED,
    AwaitedState.NOT_ARRIVED: job_pb2.AWAITED_STATE_NOT_ARRIVED,
    AwaitedState.SILENT: job_pb2.AWAITED_STATE_SILENT,
}
LIMITS = {
    Limit.JOBS: error_details_pb2.LIMIT_KIND_JOBS,
    Limit.NODES_PER_JOB: error_details_pb2.LIMIT_KIND_NODES_PER_JOB,
    Limit.NODE_HEALTH: error_details_pb2.LIMIT_KIND_NODE_HEALTH,
    Limit.ABSENT_CORDONS: error_details_pb2.LIMIT_KIND_ABSENT_CORDONS,
    Limit.OPEN_BARRIERS: error_details_pb2.LIMIT_KIND_OPEN_BARRIERS,
    Limit.BARRIER_NAMES: error_details_pb2.LIMIT_KIND_OPEN_BARRIERS,
    Limit.PAYLOAD_BYTES: error_details_pb2.LIMIT_KIND_PAYLOAD_BYTES,
    Limit.BARRIER_CALLS: error_details_pb2.LIMIT_KIND_WAITING_CALLS,
    Limit.KEYS: error_details_pb2.LIMIT_KIND_KEYS,
    Limit.KEY_BYTES: error_details_pb2.LIMIT_KIND_KEYS,
    Limit.KEY_RATE: error_details_pb2.LIMIT_KIND_KEYS,
    Limit.ALL_WEIGHT: error_details_pb2.LIMIT_KIND_KEYS,
    Limit.BARRIER_BYTES: error_details_pb2.LIMIT_KIND_PAYLOAD_BYTES,
    Limit.VALUE_BYTES: error_details_pb2.LIMIT_KIND_VALUE_BYTES,
    Limit.VALUES: error_details_pb2.LIMIT_KIND_ANSWER_BYTES,
    Limit.KEY_CALLS: error_details_pb2.LIMIT_KIND_WAITING_CALLS,
    Limit.KEY_WATCHES_PER_JOB: error_details_pb2.LIMIT_KIND_WATCHES_PER_JOB,
    Limit.KEY_WATCHES_PER_HOST: error_details_pb2.LIMIT_KIND_WATCHES_PER_HOST,
    Limit.EVENT_WATCHES_PER_JOB: error_details_pb2.LIMIT_KIND_WATCHES_PER_JOB,
    Limit.EVENT_WATCHES_PER_HOST: error_details_pb2.LIMIT_KIND_WATCHES_PER_HOST,
    Limit.ANSWER_BYTES: error_details_pb2.LIMIT_KIND_ANSWER_BYTES,
    Limit.WATCHERS_PER_JOB: error_details_pb2.LIMIT_KIND_WATCHES_PER_JOB,
    Limit.WATCHERS_PER_HOST: error_details_pb2.LIMIT_KIND_WATCHES_PER_HOST,
    Limit.JOBS_WATCHERS: error_details_pb2.LIMIT_KIND_WATCHES,
    Limit.HEALTH_WATCHES_PER_HOST: error_details_pb2.LIMIT_KIND_WATCHES_PER_HOST,
    Limit.REFLECTIONS_PER_HOST: error_details_pb2.LIMIT_KIND_WATCHES_PER_HOST,
    Limit.REQUESTS_PER_HOST: error_details_pb2.LIMIT_KIND_WAITING_CALLS,
    Limit.UNREAD_PER_HOST: error_details_pb2.LIMIT_KIND_ANSWER_BYTES,
    Limit.STREAMS_PER_HOST: error_details_pb2.LIMIT_KIND_STREAMS_PER_HOST,
    Limit.STREAMS_PER_RELAY: error_details_pb2.LIMIT_KIND_STREAMS_PER_HOST,
    Limit.JOBS_PER_HOST: error_details_pb2.LIMIT_KIND_JOBS_PER_HOST,
    Limit.JOBS_PER_TOKEN: error_details_pb2.LIMIT_KIND_JOBS_PER_TOKEN,
    Limit.SESSIONS_PER_HOST: error_details_pb2.LIMIT_KIND_SESSIONS_PER_HOST,
    Limit.NEW_RUNS_PER_HOST: error_details_pb2.LIMIT_KIND_JOBS_PER_HOST,
    Limit.FAILED_ATTEMPTS_PER_HOST: error_details_pb2.LIMIT_KIND_FAILED_ATTEMPTS_PER_HOST,
}
