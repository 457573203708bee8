"""One table that maps refusals of the core to gRPC statuses with a detail message."""

from __future__ import annotations

import grpc
from google.protobuf.message import Message
from msgspec import Struct

from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.v1 import error_details_pb2 as details_pb2

HELLO_AGAIN_MS = 100
"""Pause before the next Hello of an agent whose stream was out of date. A member of a round has to
be back within half a second."""
AGAIN_MS = 500
"""Pause before another attempt of what a coordinator cannot do yet."""


class Row(Struct, frozen=True):
    """What the status of one kind of refusal is made of."""

    code: grpc.StatusCode
    detail: type[Message] | None
    """None where the status alone is enough: the agent only has to open a new stream."""
    text: str
    """Message for people; `{name}` is replaced by a fact of the refusal."""
    field: str
    """Path of the field at fault in the message; empty when it is no single one."""
    stale: details_pb2.StaleKind.ValueType = details_pb2.STALE_KIND_UNSPECIFIED
    """Kind of a StaleSender."""
    retry_ms: int | None = None
    """The shortest pause before another attempt; None where none makes sense."""


TABLE: dict[RefusalKind, Row] = {
    RefusalKind.SPEC_MISMATCH: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.SpecMismatch,
        "this agent and job {job_id} disagree: {differences}; {advice}",
        "hello.spec",
    ),
    RefusalKind.NODE_NAME_IN_USE: Row(
        grpc.StatusCode.ALREADY_EXISTS,
        details_pb2.NodeNameInUse,
        "another agent of job {job_id} is attached as node {node_name}; give this one another "
        "--node-name",
        "hello.node_name",
    ),
    RefusalKind.NODE_RANK_IN_USE: Row(
        grpc.StatusCode.ALREADY_EXISTS,
        details_pb2.NodeRankInUse,
        "node {node_name} of job {job_id} already has --node-rank {node_rank}; choose another one",
        "hello.node_rank",
    ),
    RefusalKind.ADDRESS_MISMATCH: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.AddressMismatch,
        "node {node_name} has the address {address}, but {other_node_name} has {other_address}: "
        "workers could not reach each other; set --local-addr",
        "hello.address",
    ),
    RefusalKind.PROGRAM_MISMATCH: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.ProgramMismatch,
        "node {node_name} runs {program}, but {other_node_name} of job {job_id} runs "
        "{other_program}: use another --job-id, or --allow-different-programs",
        "hello.program",
    ),
    RefusalKind.PREVIOUS_RUN_ENDING: Row(
        grpc.StatusCode.UNAVAILABLE,
        details_pb2.PreviousRunEnding,
        "run {run} of job {job_id} is still ending",
        "hello.job_id",
        retry_ms=AGAIN_MS,
    ),
    RefusalKind.OLD_RUN: Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "the agent belongs to run {actual}, which is over; the latest is run {expected}",
        "hello.run",
        details_pb2.STALE_KIND_RUN,
    ),
    RefusalKind.STALE_CONNECTION: Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "connection {actual} is older than connection {expected} of the same agent",
        "connection",
        details_pb2.STALE_KIND_CONNECTION,
        retry_ms=HELLO_AGAIN_MS,
    ),
    RefusalKind.STALE_EPOCH: Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "the message is for epoch {actual}; this coordinator has epoch {expected}",
        "epoch",
        details_pb2.STALE_KIND_EPOCH,
        retry_ms=HELLO_AGAIN_MS,
    ),
    RefusalKind.NEWER_EPOCH: Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "the message is for a later coordinator, of epoch {actual}; this one has epoch {expected}",
        "epoch",
        details_pb2.STALE_KIND_EPOCH,
        retry_ms=AGAIN_MS,
    ),
    RefusalKind.FOREIGN_ROUND: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.ForeignRound,
        "the agent holds a round of coordinator {owner_id}; this is coordinator {coordinator_id}: "
        "start that one with its journal, or start this agent again",
        "hello.held",
    ),
    RefusalKind.LIMIT_REACHED: Row(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        details_pb2.LimitReached,
        "the limit of {value} {limit} is reached",
        "",
    ),
    RefusalKind.UNKNOWN_JOB: Row(
        grpc.StatusCode.NOT_FOUND,
        details_pb2.UnknownJob,
        "there is no job {job_id!r}",
        "job_id",
    ),
    RefusalKind.UNKNOWN_NODE: Row(
        grpc.StatusCode.NOT_FOUND,
        details_pb2.UnknownNode,
        "no node {node_name!r} is attached to job {job_id}",
        "node_name",
    ),
    RefusalKind.TOKEN_MISSING: Row(
        grpc.StatusCode.UNAUTHENTICATED,
        None,
        "only workers of the round may call this: send RALLYPOINT_WORKER_TOKEN as the metadata "
        "rallypoint-worker-token",
        "",
    ),
    RefusalKind.TOKEN_REFUSED: Row(
        grpc.StatusCode.UNAUTHENTICATED,
        None,
        "the worker token is not one of this coordinator's",
        "",
    ),
    RefusalKind.NOT_READY: Row(
        grpc.StatusCode.UNAVAILABLE,
        None,
        "not known yet: the coordinator has just started, or the node of that name or rank is "
        "silent and may be lost; try again",
        "",
        retry_ms=AGAIN_MS,
    ),
    RefusalKind.OTHER_JOB: Row(
        grpc.StatusCode.PERMISSION_DENIED,
        None,
        "this worker token or session is not one of job {job_id}",
        "job_id",
    ),
    RefusalKind.RUN_OVER: Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "the worker belongs to run {actual}, which is over; the latest is run {expected}",
        "",
        details_pb2.STALE_KIND_RUN,
    ),
    RefusalKind.OLD_ROUND: Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "round {actual} is over or ends now; the latest is round {expected}",
        "",
        details_pb2.STALE_KIND_ROUND,
    ),
    RefusalKind.BARRIER_MISMATCH: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.BarrierMismatch,
        "barrier {name} waits for {expected}, not for {actual}",
        "expected",
    ),
    RefusalKind.GENERATION_OVER: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.BarrierMismatch,
        "barrier {name} is at {expected}, not at {actual}",
        "generation",
    ),
    RefusalKind.BARRIER_FORGOTTEN: Row(
        grpc.StatusCode.DATA_LOSS,
        None,
        "the coordinator has started again without its memory: whether this arrival at barrier "
        "{name} counted is unknown; agree on another name",
        "name",
    ),
    RefusalKind.PARTICIPANT_ARRIVED: Row(
        grpc.StatusCode.ALREADY_EXISTS,
        None,
        "{participant} has arrived at barrier {name} already, with another request_id",
        "participant",
    ),
    RefusalKind.NOT_EXPECTED: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        None,
        "no one expects {participant} at barrier {name}",
        "participant",
    ),
    RefusalKind.JOB_EXISTS: Row(
        grpc.StatusCode.ALREADY_EXISTS,
        details_pb2.JobExists,
        "job {job_id} exists, and run {run} has not ended; cancel it, or choose another job id",
        "job_id",
    ),
    RefusalKind.JOB_ENDED: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.JobEnded,
        "run {run} of job {job_id} has ended: {outcome}; its next run begins with its agents",
        "job_id",
    ),
    RefusalKind.JOB_OPEN: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.JobOpen,
        "run {run} of job {job_id} has not ended, or is not the one in the request",
        "job_id",
    ),
    RefusalKind.LATER_RUN: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.JobOpen,
        "the latest run of job {job_id} is {run}, not the one in the request",
        "run",
    ),
    RefusalKind.SPEC_IMPOSSIBLE: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        None,
        "min_nodes would be {min_nodes} and max_nodes {max_nodes}",
        "update",
    ),
    RefusalKind.NODES_MISSING: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        None,
        "job {job_id} has {nodes} of {min_nodes} nodes: its workers would stop and wait for more",
        "update.min_nodes",
    ),
    RefusalKind.KEY_NOT_A_NUMBER: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        None,
        "key {key} does not hold a number, so nothing can be added to it",
        "",
    ),
    RefusalKind.SUM_TOO_LARGE: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        None,
        "the sum would have more than 63 bits; key {key} is as it was",
        "",
    ),
    RefusalKind.REQUEST_ID_REUSED: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        None,
        "request_id {request_id} belongs to another request: every change needs a new one",
        "request_id",
    ),
    RefusalKind.KEYS_FORGOTTEN: Row(
        grpc.StatusCode.DATA_LOSS,
        None,
        "whether an earlier attempt changed key {key} is not known any more; read the key, and "
        "decide again",
        "known",
    ),
    RefusalKind.KEYS_COMPACTED: Row(
        grpc.StatusCode.OUT_OF_RANGE,
        details_pb2.KeysCompacted,
        "changes since that revision are not remembered; {oldest_revision} of epoch {epoch} is the "
        "oldest that can be watched: list the keys, and watch from the header of that answer",
        "start_revision",
    ),
    RefusalKind.INTERNAL: Row(
        grpc.StatusCode.INTERNAL,
        None,
        "internal error; the coordinator's log has the cause: incident {incident}",
        "",
    ),
    RefusalKind.SEQUENCE_GAP: Row(
        grpc.StatusCode.ABORTED,
        None,
        "expected report {expected}, got report {actual}",
        "sequence",
        retry_ms=HELLO_AGAIN_MS,
    ),
    RefusalKind.NOT_PROVEN: Row(
        grpc.StatusCode.PERMISSION_DENIED,
        None,
        "only the token of its Welcome resumes this session",
        "hello.resume_token",
        retry_ms=HELLO_AGAIN_MS,
    ),
    RefusalKind.UNKNOWN_SESSION: Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "the coordinator no longer knows this session",
        "session_id",
        details_pb2.STALE_KIND_SESSION,
        retry_ms=HELLO_AGAIN_MS,
    ),
    RefusalKind.SPEC_CHANGED: Row(
        grpc.StatusCode.ABORTED,
        details_pb2.SpecChanged,
        "the specification of job {job_id} was changed at revision {revision}: read the job, and "
        "decide again",
        "revision",
    ),
    RefusalKind.REVISION_COMPACTED: Row(
        grpc.StatusCode.OUT_OF_RANGE,
        details_pb2.RevisionCompacted,
        "deletions since that revision are not remembered; {oldest_revision} of epoch {epoch} is "
        "the oldest after which a watch can begin: list the jobs, and watch from that answer",
        "after_revision",
    ),
    RefusalKind.EVENTS_COMPACTED: Row(
        grpc.StatusCode.OUT_OF_RANGE,
        details_pb2.EventsCompacted,
        "events after that sequence are lost, or it is not one of this coordinator's; from "
        "{oldest_sequence} of epoch {epoch} on nothing is missing, and 0 shows all that are kept",
        "after_sequence",
    ),
}
