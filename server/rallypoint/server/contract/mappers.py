"""What of the core mirrors the contract: the numbers of enums, and the mappers of structs."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message
from msgspec import Struct

from rallypoint.server.contract.bounds import check
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.desired import (
    DesiredFinished,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
)
from rallypoint.server.core.model.node import NodeState, Program
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import Assignment, Milestone, RoundHeader, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from rallypoint.server.core.reads.explain import Awaited, Waiting
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import error_details_pb2, job_pb2, node_pb2, round_pb2, verdict_pb2
from rallypoint.wire.mapping import Mapper, numbers_of

PHASES = numbers_of(Phase, job_pb2.JobPhase.DESCRIPTOR)
OUTCOMES = numbers_of(Outcome, job_pb2.Outcome.DESCRIPTOR)
REASONS = numbers_of(RoundReason, round_pb2.RoundReason.DESCRIPTOR)
DEPARTURES = {
    RoundReason.NODE_LOST: job_pb2.DEPARTURE_KIND_LOST,
    RoundReason.NODE_LEFT: job_pb2.DEPARTURE_KIND_LEFT,
    RoundReason.DRAINED: job_pb2.DEPARTURE_KIND_DRAINED,
}
CAUSES = numbers_of(VerdictCause, verdict_pb2.VerdictCause.DESCRIPTOR)
CONSEQUENCES = numbers_of(Consequence, verdict_pb2.VerdictConsequence.DESCRIPTOR)
STATES = numbers_of(NodeState, node_pb2.NodeState.DESCRIPTOR)
MILESTONES = numbers_of(Milestone, agent_pb2.Milestone.DESCRIPTOR)
LIMITS = numbers_of(
    Limit,
    error_details_pb2.LimitKind.DESCRIPTOR,
    {
        Limit.BARRIER_NAMES: "OPEN_BARRIERS",
        Limit.BARRIER_CALLS: "WAITING_CALLS",
        Limit.KEY_BYTES: "KEYS",
        Limit.KEY_RATE: "KEYS",
        Limit.ALL_WEIGHT: "KEYS",
        Limit.BARRIER_BYTES: "PAYLOAD_BYTES",
        Limit.VALUES: "ANSWER_BYTES",
        Limit.KEY_CALLS: "WAITING_CALLS",
        Limit.KEY_WATCHES_PER_JOB: "WATCHES_PER_JOB",
        Limit.KEY_WATCHES_PER_HOST: "WATCHES_PER_HOST",
        Limit.EVENT_WATCHES_PER_JOB: "WATCHES_PER_JOB",
        Limit.EVENT_WATCHES_PER_HOST: "WATCHES_PER_HOST",
        Limit.WATCHERS_PER_JOB: "WATCHES_PER_JOB",
        Limit.WATCHERS_PER_HOST: "WATCHES_PER_HOST",
        Limit.JOBS_WATCHERS: "WATCHES",
        Limit.HEALTH_WATCHES_PER_HOST: "WATCHES_PER_HOST",
        Limit.REFLECTIONS_PER_HOST: "WATCHES_PER_HOST",
        Limit.REQUESTS_PER_HOST: "WAITING_CALLS",
        Limit.UNREAD_PER_HOST: "ANSWER_BYTES",
        Limit.STREAMS_PER_RELAY: "STREAMS_PER_HOST",
        Limit.NEW_RUNS_PER_HOST: "JOBS_PER_HOST",
    },
)

ASSIGNMENT = Mapper(Assignment, round_pb2.Assignment)
HEADER = Mapper(RoundHeader, round_pb2.RoundHeader)
RUN = Mapper(
    DesiredRun, agent_pb2.RunOrder, apart=("header", "drain", "held_token", "worker_token")
)
STOP = Mapper(DesiredStop, agent_pb2.Stop, apart=("drain",))
STANDBY = Mapper(DesiredStandby, agent_pb2.Standby)
FINISHED = Mapper(DesiredFinished, agent_pb2.Finished, apart=("verdict", "no_requeue"))
PROGRAM = Mapper(Program, agent_pb2.Program)
SPEC = Mapper(JobSpec, job_pb2.JobSpec)
ERROR = Mapper(ErrorRecord, node_pb2.ErrorRecord, {"before_exit_ms": "age_at_exit"})
EXIT = Mapper(
    WorkerExit,
    node_pb2.WorkerExit,
    {
        "ago_ms": "age",
        "ran_ms": "run_time",
        "signalled_before_ms": "outlived_signal_for",
        "failed_ms": "failed_at",
    },
    apart=("local_rank", "pid", "at_ms"),
    nested=(ERROR,),
)
AWAITED_NODE = Mapper(Awaited, job_pb2.AwaitedNode, {"since_ms": "in_state_for"})
WAITING = Mapper(
    Waiting,
    job_pb2.Waiting,
    {"awaited": "nodes", "left_ms": "time_left"},
    apart=("silent",),
    nested=(AWAITED_NODE,),
)

_Request = TypeVar("_Request", bound=Message)
_Operation = TypeVar("_Operation", bound=Struct)


def to_operation(request: _Request, mapper: Mapper[_Operation, _Request]) -> _Operation:
    """Return an operator's request that says the same as its input."""
    check(request)
    return mapper.to_struct(request)
