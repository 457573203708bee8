"""Every reason for which the coordinator refuses a call, and its status: one table."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from grpc import StatusCode as Code
from msgspec import Struct

from rallypoint.server.contract.mappers import LIMITS, OUTCOMES
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.phase import Outcome
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.errors import pack_status

HELLO_AGAIN_MS = 100
"""Pause before the next Hello of an agent whose stream was out of date. A member of a round has to
be back within half a second."""
AGAIN_MS = 500
"""Pause before another attempt of what a coordinator cannot do yet; a shard moves in seconds."""
SLOW_AGAIN_MS = 1_000
"""Pause of a peer that was too slow: with its Hello, or as a reader."""
NAMES_BYTES_MAX = 1_024
"""Bytes of names in each list of a detail: details travel in metadata, of at most 8 KiB."""


class Row(Struct, frozen=True):
    """What the status of one kind of refusal is made of."""

    code: Code
    text: str
    """Message for people; `{name}` is replaced by a fact of the refusal."""
    detail: type[Message] | None = None
    """None where the status alone is enough: the agent only has to open a new stream."""
    field: str = ""
    """Path of the field at fault in the message; empty when it is no single one."""
    stale: details_pb2.StaleKind.ValueType = details_pb2.STALE_KIND_UNSPECIFIED
    """Kind of a StaleSender."""
    retry_ms: int | None = None
    """The shortest pause before another attempt; None where none makes sense."""


TABLE: dict[details_pb2.RefusalReason.ValueType, Row] = {
    details_pb2.REFUSAL_REASON_SPEC_MISMATCH: Row(
        Code.FAILED_PRECONDITION,
        "this agent and job {job_id} disagree: {shown}; {advice}",
        details_pb2.SpecMismatch,
        field="hello.spec",
    ),
    details_pb2.REFUSAL_REASON_NODE_NAME_IN_USE: Row(
        Code.ALREADY_EXISTS,
        "another agent of job {job_id} is attached as node {node_name}; give this one another "
        "--node-name",
        details_pb2.NodeNameInUse,
        field="hello.node_name",
    ),
    details_pb2.REFUSAL_REASON_NODE_RANK_IN_USE: Row(
        Code.ALREADY_EXISTS,
        "node {node_name} of job {job_id} already has --node-rank {node_rank}; choose another one",
        details_pb2.NodeRankInUse,
        field="hello.node_rank",
    ),
    details_pb2.REFUSAL_REASON_ADDRESS_MISMATCH: Row(
        Code.FAILED_PRECONDITION,
        "node {node_name} has the address {address}, but {other_node_name} has {other_address}: "
        "workers could not reach each other; set --local-addr",
        details_pb2.AddressMismatch,
        field="hello.address",
    ),
    details_pb2.REFUSAL_REASON_PROGRAM_MISMATCH: Row(
        Code.FAILED_PRECONDITION,
        "node {node_name} runs {program}, but {other_node_name} of job {job_id} runs "
        "{other_program}: use another --job-id, or --allow-different-programs",
        details_pb2.ProgramMismatch,
        field="hello.program",
    ),
    details_pb2.REFUSAL_REASON_PREVIOUS_RUN_ENDING: Row(
        Code.UNAVAILABLE,
        "run {run} of job {job_id} is still ending",
        details_pb2.PreviousRunEnding,
        field="hello.job_id",
        retry_ms=AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_OLD_RUN: Row(
        Code.ABORTED,
        "the agent belongs to run {actual}, which is over; the latest is run {expected}",
        details_pb2.StaleSender,
        field="hello.run",
        stale=details_pb2.STALE_KIND_RUN,
    ),
    details_pb2.REFUSAL_REASON_STALE_CONNECTION: Row(
        Code.ABORTED,
        "connection {actual} is older than connection {expected} of the same agent",
        details_pb2.StaleSender,
        field="connection",
        stale=details_pb2.STALE_KIND_CONNECTION,
        retry_ms=HELLO_AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_STALE_EPOCH: Row(
        Code.ABORTED,
        "the message is for epoch {actual}; this coordinator has epoch {expected}",
        details_pb2.StaleSender,
        field="epoch",
        stale=details_pb2.STALE_KIND_EPOCH,
        retry_ms=HELLO_AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_NEWER_EPOCH: Row(
        Code.ABORTED,
        "the message is for a later coordinator, of epoch {actual}; this one has epoch {expected}",
        details_pb2.StaleSender,
        field="epoch",
        stale=details_pb2.STALE_KIND_EPOCH,
        retry_ms=AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_FOREIGN_ROUND: Row(
        Code.FAILED_PRECONDITION,
        "the agent holds a round of coordinator {owner_id}; this is coordinator {coordinator_id}: "
        "start that one with its journal, or start this agent again",
        details_pb2.ForeignRound,
        field="hello.held",
    ),
    details_pb2.REFUSAL_REASON_LIMIT_REACHED: Row(
        Code.RESOURCE_EXHAUSTED, "the limit of {value} {limit} is reached", details_pb2.LimitReached
    ),
    details_pb2.REFUSAL_REASON_UNKNOWN_JOB: Row(
        Code.NOT_FOUND, "there is no job {job_id!r}", details_pb2.UnknownJob, field="job_id"
    ),
    details_pb2.REFUSAL_REASON_UNKNOWN_NODE: Row(
        Code.NOT_FOUND,
        "no node {node_name!r} is attached to job {job_id}",
        details_pb2.UnknownNode,
        field="node_name",
    ),
    details_pb2.REFUSAL_REASON_TOKEN_MISSING: Row(
        Code.UNAUTHENTICATED,
        "only workers of the round may call this: send RALLYPOINT_WORKER_TOKEN as the metadata "
        "rallypoint-worker-token",
    ),
    details_pb2.REFUSAL_REASON_TOKEN_REFUSED: Row(
        Code.UNAUTHENTICATED, "the worker token is not one of this coordinator's"
    ),
    details_pb2.REFUSAL_REASON_NOT_READY: Row(
        Code.UNAVAILABLE,
        "not known yet: the coordinator has just started, or the node of that name or rank is "
        "silent and may be lost; try again",
        retry_ms=AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_OTHER_JOB: Row(
        Code.PERMISSION_DENIED,
        "this worker token or session is not one of job {job_id}",
        field="job_id",
    ),
    details_pb2.REFUSAL_REASON_RUN_OVER: Row(
        Code.ABORTED,
        "the worker belongs to run {actual}, which is over; the latest is run {expected}",
        details_pb2.StaleSender,
        stale=details_pb2.STALE_KIND_RUN,
    ),
    details_pb2.REFUSAL_REASON_OLD_ROUND: Row(
        Code.ABORTED,
        "round {actual} is over or ends now; the latest is round {expected}",
        details_pb2.StaleSender,
        stale=details_pb2.STALE_KIND_ROUND,
    ),
    details_pb2.REFUSAL_REASON_BARRIER_MISMATCH: Row(
        Code.FAILED_PRECONDITION,
        "barrier {name} waits for {expected}, not for {actual}",
        details_pb2.BarrierMismatch,
        field="expected",
    ),
    details_pb2.REFUSAL_REASON_GENERATION_OVER: Row(
        Code.FAILED_PRECONDITION,
        "barrier {name} is at {expected}, not at {actual}",
        details_pb2.BarrierMismatch,
        field="generation",
    ),
    details_pb2.REFUSAL_REASON_BARRIER_FORGOTTEN: Row(
        Code.DATA_LOSS,
        "the coordinator has started again without its memory: whether this arrival at barrier "
        "{name} counted is unknown; agree on another name",
        field="name",
    ),
    details_pb2.REFUSAL_REASON_PARTICIPANT_ARRIVED: Row(
        Code.ALREADY_EXISTS,
        "{participant} has arrived at barrier {name} already, with another request_id",
        field="participant",
    ),
    details_pb2.REFUSAL_REASON_NOT_EXPECTED: Row(
        Code.FAILED_PRECONDITION,
        "barrier {name} does not expect {participant}",
        field="participant",
    ),
    details_pb2.REFUSAL_REASON_JOB_EXISTS: Row(
        Code.ALREADY_EXISTS,
        "job {job_id} exists, and run {run} has not ended; cancel it, or choose another job id",
        details_pb2.JobExists,
        field="job_id",
    ),
    details_pb2.REFUSAL_REASON_JOB_ENDED: Row(
        Code.FAILED_PRECONDITION,
        "run {run} of job {job_id} has ended: {outcome}; its next run begins with its agents",
        details_pb2.JobEnded,
        field="job_id",
    ),
    details_pb2.REFUSAL_REASON_JOB_OPEN: Row(
        Code.FAILED_PRECONDITION,
        "run {run} of job {job_id} has not ended, or is not the one in the request",
        details_pb2.JobOpen,
        field="job_id",
    ),
    details_pb2.REFUSAL_REASON_LATER_RUN: Row(
        Code.FAILED_PRECONDITION,
        "the latest run of job {job_id} is {run}, not the one in the request",
        details_pb2.JobOpen,
        field="run",
    ),
    details_pb2.REFUSAL_REASON_SPEC_IMPOSSIBLE: Row(
        Code.FAILED_PRECONDITION,
        "min_nodes would be {min_nodes} and max_nodes {max_nodes}",
        field="update",
    ),
    details_pb2.REFUSAL_REASON_NODES_MISSING: Row(
        Code.FAILED_PRECONDITION,
        "job {job_id} has {nodes} of {min_nodes} nodes: its workers would stop and wait for more",
        field="update.min_nodes",
    ),
    details_pb2.REFUSAL_REASON_KEY_NOT_A_NUMBER: Row(
        Code.FAILED_PRECONDITION, "key {key} does not hold a number, so nothing can be added to it"
    ),
    details_pb2.REFUSAL_REASON_SUM_TOO_LARGE: Row(
        Code.FAILED_PRECONDITION, "the sum would have more than 63 bits; key {key} is as it was"
    ),
    details_pb2.REFUSAL_REASON_REQUEST_ID_REUSED: Row(
        Code.FAILED_PRECONDITION,
        "request_id {request_id} belongs to another request: every change needs a new one",
        field="request_id",
    ),
    details_pb2.REFUSAL_REASON_KEYS_FORGOTTEN: Row(
        Code.DATA_LOSS,
        "whether an earlier attempt changed key {key} is not known any more; read the key, and "
        "decide again",
        field="known",
    ),
    details_pb2.REFUSAL_REASON_KEYS_COMPACTED: Row(
        Code.OUT_OF_RANGE,
        "changes since that revision are not remembered; {oldest_revision} of epoch {epoch} is the "
        "oldest that can be watched: list the keys, and watch from the header of that answer",
        details_pb2.KeysCompacted,
        field="start_revision",
    ),
    details_pb2.REFUSAL_REASON_INTERNAL: Row(
        Code.INTERNAL, "internal error; the coordinator's log has the cause: incident {incident}"
    ),
    details_pb2.REFUSAL_REASON_SEQUENCE_GAP: Row(
        Code.ABORTED,
        "expected report {expected}, got report {actual}",
        field="sequence",
        retry_ms=HELLO_AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_NOT_PROVEN: Row(
        Code.PERMISSION_DENIED,
        "only the token of its Welcome resumes this session",
        field="hello.resume_token",
        retry_ms=HELLO_AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_UNKNOWN_SESSION: Row(
        Code.ABORTED,
        "the coordinator no longer knows this session",
        details_pb2.StaleSender,
        field="session_id",
        stale=details_pb2.STALE_KIND_SESSION,
        retry_ms=HELLO_AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_SPEC_CHANGED: Row(
        Code.ABORTED,
        "the specification of job {job_id} was changed at revision {revision}: read the job, and "
        "decide again",
        details_pb2.SpecChanged,
        field="revision",
    ),
    details_pb2.REFUSAL_REASON_REVISION_COMPACTED: Row(
        Code.OUT_OF_RANGE,
        "deletions since that revision are not remembered; {oldest_revision} of epoch {epoch} is "
        "the oldest after which a watch can begin: list the jobs, and watch from that answer",
        details_pb2.RevisionCompacted,
        field="after_revision",
    ),
    details_pb2.REFUSAL_REASON_EVENTS_COMPACTED: Row(
        Code.OUT_OF_RANGE,
        "events after that sequence are lost, or it is not one of this coordinator's; from "
        "{oldest_sequence} of epoch {epoch} on nothing is missing, and 0 shows all that are kept",
        details_pb2.EventsCompacted,
        field="after_sequence",
    ),
    details_pb2.REFUSAL_REASON_INVALID_FIELD: Row(
        Code.INVALID_ARGUMENT, "{path}: {problem}", field="{path}"
    ),
    details_pb2.REFUSAL_REASON_NO_HELLO: Row(
        Code.DEADLINE_EXCEEDED, "{problem}", field="message", retry_ms=SLOW_AGAIN_MS
    ),
    details_pb2.REFUSAL_REASON_PROTOCOL_MISMATCH: Row(
        Code.FAILED_PRECONDITION,
        "the agent speaks {agent}, this coordinator {coordinator}: upgrade the {older}",
        details_pb2.ProtocolMismatch,
        field="hello.protocol_version",
    ),
    details_pb2.REFUSAL_REASON_SESSION_LOST: Row(
        Code.ABORTED,
        "this session counts as lost",
        details_pb2.StaleSender,
        field="session_id",
        stale=details_pb2.STALE_KIND_SESSION,
        retry_ms=HELLO_AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_COORDINATOR_ENDED: Row(
        Code.UNAVAILABLE,
        "the coordinator has ended, or stopped serving this job",
        retry_ms=AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_WATCHER_STALLED: Row(
        Code.DEADLINE_EXCEEDED,
        "an answer was not read within {limit_s:g} s",
        retry_ms=SLOW_AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_KEYS_MISSING: Row(
        Code.DEADLINE_EXCEEDED,
        "not all keys existed within {waited_s:g} s; missing: {shown}",
        details_pb2.KeysMissing,
    ),
    details_pb2.REFUSAL_REASON_NO_OWNER: Row(Code.UNAVAILABLE, "{problem}", retry_ms=AGAIN_MS),
    details_pb2.REFUSAL_REASON_STORE_UNAVAILABLE: Row(
        Code.UNAVAILABLE, "nothing can be decided at the moment: {trouble}", retry_ms=AGAIN_MS
    ),
    details_pb2.REFUSAL_REASON_OWNER_LOST: Row(
        Code.UNAVAILABLE,
        "the owner of shard {shard}, the coordinator at {address}, has not answered{trouble}",
        retry_ms=AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_NOT_OWNER: Row(
        Code.UNAVAILABLE,
        "the coordinator at {address} owns the job{trouble}",
        details_pb2.NotOwner,
        retry_ms=AGAIN_MS,
    ),
    details_pb2.REFUSAL_REASON_ACCESS_TOKEN_MISSING: Row(Code.UNAUTHENTICATED, "{problem}"),
    details_pb2.REFUSAL_REASON_ACCESS_TOKEN_INVALID: Row(Code.UNAUTHENTICATED, "{problem}"),
    details_pb2.REFUSAL_REASON_ACCESS_TOKEN_EXPIRED: Row(Code.UNAUTHENTICATED, "{problem}"),
    details_pb2.REFUSAL_REASON_ROLE_NOT_ALLOWED: Row(Code.PERMISSION_DENIED, "{problem}"),
    details_pb2.REFUSAL_REASON_JOB_NOT_ALLOWED: Row(
        Code.PERMISSION_DENIED, "{problem}", field="job_id"
    ),
}
"""By reason. BARRIER_BROKEN has no row: its code depends on why the barrier has failed."""


def status_of(reason: details_pb2.RefusalReason.ValueType, /, **facts: Any) -> Status:
    """Return the status of a refusal; its text, its field and its detail take the facts."""
    row = TABLE[reason]
    return pack_status(
        row.code,
        row.text.format(**facts),
        _detail(row, facts),
        reason=reason,
        field=row.field.format(**facts),
        retry_ms=row.retry_ms,
    )


def _detail(row: Row, facts: dict[str, Any]) -> Message | None:
    """Return the detail message of a refusal, with the refusal's facts in its fields."""
    if row.detail is None:
        return None
    known = row.detail.DESCRIPTOR.fields_by_name
    filled = {name: value for name, value in facts.items() if name in known}
    if row.detail is details_pb2.StaleSender:
        filled["kind"] = row.stale
    if row.detail is details_pb2.JobEnded:
        filled["outcome"] = OUTCOMES[Outcome(facts["outcome"])]
    if row.detail is details_pb2.LimitReached:
        filled["kind"] = LIMITS[Limit(facts["limit"])]
    return row.detail(**filled)
