"""One table that maps refusals of the core to gRPC statuses with a detail message."""

from __future__ import annotations

import math

import grpc
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from msgspec import Struct

from rallypoint.base.limits import PROTOCOL_VERSION
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.rpc.guards.peers import LimitExceeded
from rallypoint.server.rpc.views.enums import OUTCOMES
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.durations import to_duration
from rallypoint.wire.errors import pack_status


class _Row(Struct, frozen=True):
    code: grpc.StatusCode
    detail: type[Message] | None
    """None where the status alone is enough: the agent only has to open a new stream."""
    text: str
    """Message for people; `{name}` is replaced by a fact of the refusal."""
    field: str
    """Path of the field at fault in the message; empty when it is no single one."""
    stale: details_pb2.StaleKind.ValueType = details_pb2.STALE_KIND_UNSPECIFIED
    """Kind of a StaleSender."""


_TABLE: dict[RefusalKind, _Row] = {
    RefusalKind.SPEC_MISMATCH: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.SpecMismatch,
        "this agent and job {job_id} disagree: {differences}; start every agent of a job with the "
        "same values",
        "hello.spec",
    ),
    RefusalKind.NODE_NAME_IN_USE: _Row(
        grpc.StatusCode.ALREADY_EXISTS,
        details_pb2.NodeNameInUse,
        "another agent of job {job_id} is attached as node {node_name}; give this one another "
        "--node-name",
        "hello.node_name",
    ),
    RefusalKind.NODE_RANK_IN_USE: _Row(
        grpc.StatusCode.ALREADY_EXISTS,
        details_pb2.NodeRankInUse,
        "node {node_name} of job {job_id} already has --node-rank {node_rank}; choose another one",
        "hello.node_rank",
    ),
    RefusalKind.ADDRESS_MISMATCH: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.AddressMismatch,
        "node {node_name} has the address {address}, but {other_node_name} has {other_address}: "
        "workers could not reach each other; set --local-addr",
        "hello.address",
    ),
    RefusalKind.PROGRAM_MISMATCH: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.ProgramMismatch,
        "node {node_name} runs {program}, but {other_node_name} of job {job_id} runs "
        "{other_program}: use another --job-id, or --allow-different-programs",
        "hello.program",
    ),
    RefusalKind.PREVIOUS_RUN_ENDING: _Row(
        grpc.StatusCode.UNAVAILABLE,
        details_pb2.PreviousRunEnding,
        "run {run} of job {job_id} is still ending",
        "hello.job_id",
    ),
    RefusalKind.OLD_RUN: _Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "the agent belongs to run {actual}, which is over; the latest is run {expected}",
        "hello.run",
        details_pb2.STALE_KIND_RUN,
    ),
    RefusalKind.STALE_CONNECTION: _Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "connection {actual} is older than connection {expected} of the same agent",
        "connection",
        details_pb2.STALE_KIND_CONNECTION,
    ),
    RefusalKind.STALE_EPOCH: _Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "the message is for epoch {actual}; this coordinator has epoch {expected}",
        "epoch",
        details_pb2.STALE_KIND_EPOCH,
    ),
    RefusalKind.NEWER_EPOCH: _Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "the message is for a later coordinator, of epoch {actual}; this one has epoch {expected}",
        "epoch",
        details_pb2.STALE_KIND_EPOCH,
    ),
    RefusalKind.FOREIGN_ROUND: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.ForeignRound,
        "the agent holds a round of coordinator {owner_id}; this is coordinator {coordinator_id}",
        "hello.held",
    ),
    RefusalKind.LIMIT_REACHED: _Row(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        details_pb2.LimitReached,
        "the limit of {value} {limit} is reached",
        "",
    ),
    RefusalKind.UNKNOWN_JOB: _Row(
        grpc.StatusCode.NOT_FOUND,
        details_pb2.UnknownJob,
        "there is no job {job_id!r}",
        "job_id",
    ),
    RefusalKind.UNKNOWN_NODE: _Row(
        grpc.StatusCode.NOT_FOUND,
        details_pb2.UnknownNode,
        "no node {node_name!r} is attached to job {job_id}",
        "node_name",
    ),
    RefusalKind.TOKEN_MISSING: _Row(
        grpc.StatusCode.UNAUTHENTICATED,
        None,
        "only workers of the round may call this: send RALLYPOINT_WORKER_TOKEN as the metadata "
        "rallypoint-worker-token",
        "",
    ),
    RefusalKind.TOKEN_REFUSED: _Row(
        grpc.StatusCode.UNAUTHENTICATED,
        None,
        "the worker token is not one of this coordinator's",
        "",
    ),
    RefusalKind.NOT_READY: _Row(
        grpc.StatusCode.UNAVAILABLE,
        None,
        "the coordinator has just started and does not know its rounds yet; try again",
        "",
    ),
    RefusalKind.OTHER_JOB: _Row(
        grpc.StatusCode.PERMISSION_DENIED,
        None,
        "the worker token is not one of job {job_id}",
        "job_id",
    ),
    RefusalKind.RUN_OVER: _Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "the worker belongs to run {actual}, which is over; the latest is run {expected}",
        "",
        details_pb2.STALE_KIND_RUN,
    ),
    RefusalKind.OLD_ROUND: _Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "round {actual} is over or ends now; the latest is round {expected}",
        "",
        details_pb2.STALE_KIND_ROUND,
    ),
    RefusalKind.BARRIER_MISMATCH: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.BarrierMismatch,
        "barrier {name} waits for {expected}, not for {actual}",
        "expected",
    ),
    RefusalKind.GENERATION_OVER: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.BarrierMismatch,
        "barrier {name} is at {expected}, not at {actual}",
        "generation",
    ),
    RefusalKind.BARRIER_FORGOTTEN: _Row(
        grpc.StatusCode.DATA_LOSS,
        None,
        "the coordinator has started again without its memory: whether this arrival at barrier "
        "{name} counted is unknown; agree on another name",
        "name",
    ),
    RefusalKind.PARTICIPANT_ARRIVED: _Row(
        grpc.StatusCode.ALREADY_EXISTS,
        None,
        "{participant} has arrived at barrier {name} already, with another request_id",
        "participant",
    ),
    RefusalKind.NOT_EXPECTED: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        None,
        "no one expects {participant} at barrier {name}",
        "participant",
    ),
    RefusalKind.JOB_ENDED: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.JobEnded,
        "run {run} of job {job_id} has ended: {outcome}; its next run begins with its agents",
        "job_id",
    ),
    RefusalKind.JOB_OPEN: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        details_pb2.JobOpen,
        "run {run} of job {job_id} has not ended; cancel it before you delete the job",
        "job_id",
    ),
    RefusalKind.SPEC_IMPOSSIBLE: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        None,
        "min_nodes would be {min_nodes} and max_nodes {max_nodes}",
        "update",
    ),
    RefusalKind.KEY_NOT_A_NUMBER: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        None,
        "key {key} does not hold a number, so nothing can be added to it",
        "",
    ),
    RefusalKind.SUM_TOO_LARGE: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        None,
        "the sum would have more than 63 bits; key {key} is as it was",
        "",
    ),
    RefusalKind.REQUEST_ID_REUSED: _Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        None,
        "request_id {request_id} belongs to another request: every change needs a new one",
        "request_id",
    ),
    RefusalKind.KEYS_FORGOTTEN: _Row(
        grpc.StatusCode.DATA_LOSS,
        None,
        "whether an earlier attempt changed key {key} is not known any more; read the key, and "
        "decide again",
        "known",
    ),
    RefusalKind.KEYS_COMPACTED: _Row(
        grpc.StatusCode.OUT_OF_RANGE,
        details_pb2.KeysCompacted,
        "changes since that revision are not remembered; {oldest_revision} of epoch {epoch} is the "
        "oldest that can be watched: list the keys, and watch from the header of that answer",
        "start_revision",
    ),
    RefusalKind.EVENTS_COMPACTED: _Row(
        grpc.StatusCode.OUT_OF_RANGE,
        details_pb2.EventsCompacted,
        "events after that sequence are lost, or it is not one of this coordinator's; from "
        "{oldest_sequence} of epoch {epoch} on nothing is missing, and 0 shows all that are kept",
        "after_sequence",
    ),
    RefusalKind.INTERNAL: _Row(
        grpc.StatusCode.INTERNAL,
        None,
        "internal error; the coordinator's log has the cause: incident {incident}",
        "",
    ),
    RefusalKind.SEQUENCE_GAP: _Row(
        grpc.StatusCode.ABORTED,
        None,
        "expected report {expected}, got report {actual}",
        "sequence",
    ),
    RefusalKind.NOT_PROVEN: _Row(
        grpc.StatusCode.PERMISSION_DENIED,
        None,
        "only the token of its Welcome resumes this session",
        "hello.resume_token",
    ),
    RefusalKind.UNKNOWN_SESSION: _Row(
        grpc.StatusCode.ABORTED,
        details_pb2.StaleSender,
        "the coordinator no longer knows this session",
        "session_id",
        details_pb2.STALE_KIND_SESSION,
    ),
}


def refusal_status(refusal: Refusal) -> Status:
    """Return the status of a refusal."""
    row = _TABLE[refusal.kind]
    facts = dict(refusal.facts)
    words = "; ".join(
        f"--{field} is {expected} there and {actual} here"
        for field, expected, actual in refusal.differences
    )
    text = row.text.format(**facts, differences=words)
    return pack_status(
        _code(row.code),
        text,
        _detail(row, refusal),
        reason=refusal.kind.name,
        field=row.field,
    )


def _detail(row: _Row, refusal: Refusal) -> Message | None:
    """Return the detail message of a refusal, with the refusal's facts in its fields."""
    if row.detail is None:
        return None
    known = row.detail.DESCRIPTOR.fields_by_name
    facts = {name: value for name, value in refusal.facts if name in known}
    outcome = facts.pop("outcome", None)
    detail = row.detail(**facts)
    if isinstance(detail, details_pb2.JobEnded):
        detail.outcome = OUTCOMES[Outcome(outcome)]
    if isinstance(detail, details_pb2.StaleSender):
        detail.kind = row.stale
    if isinstance(detail, details_pb2.SpecMismatch):
        for field, expected, actual in refusal.differences:
            detail.differences.add(field=field, expected=expected, actual=actual)
    return detail


def unknown_job_status(job_id: str) -> Status:
    """Return the status for a job that does not exist."""
    return refusal_status(Refusal(RefusalKind.UNKNOWN_JOB, (("job_id", job_id),)))


def protocol_status(version: int) -> Status:
    """Return the status for an agent of another protocol version."""
    detail = details_pb2.ProtocolMismatch(coordinator_max=PROTOCOL_VERSION, agent_max=version)
    text = (
        f"the agent speaks protocol version {version}, this coordinator {PROTOCOL_VERSION}; "
        "install matching versions of rallypoint"
    )
    return pack_status(
        _code(grpc.StatusCode.FAILED_PRECONDITION),
        text,
        detail,
        reason="PROTOCOL_MISMATCH",
        field="hello.protocol_version",
    )


def lost_status() -> Status:
    """Return the status for a session that counts as lost. The agent may open a new stream."""
    detail = details_pb2.StaleSender(kind=details_pb2.STALE_KIND_SESSION)
    return pack_status(
        _code(grpc.StatusCode.ABORTED),
        "this session counts as lost",
        detail,
        reason="SESSION_LOST",
        field="session_id",
    )


def replaced_status(newer: int, older: int) -> Status:
    """Return the status for a connection of an agent that has a newer one."""
    facts = (("expected", newer), ("actual", older))
    return refusal_status(Refusal(RefusalKind.STALE_CONNECTION, facts))


def internal_status(incident: str) -> Status:
    """Return the status for a bug of the coordinator; `incident` names its line in the log."""
    return refusal_status(Refusal(RefusalKind.INTERNAL, (("incident", incident),)))


def ended_status() -> Status:
    """Return the status for a coordinator whose loop has ended. Its agents look for another one."""
    return pack_status(
        _code(grpc.StatusCode.UNAVAILABLE),
        "the coordinator has ended",
        None,
        reason="COORDINATOR_ENDED",
    )


def limit_status(exceeded: LimitExceeded) -> Status:
    """Return the status for a limit that is reached."""
    text = f"the limit of {exceeded.value} {exceeded.limit} is reached"
    detail = details_pb2.LimitReached(
        limit=exceeded.limit, value=exceeded.value, kind=exceeded.kind
    )
    if exceeded.retry_s is not None:
        detail.retry_after.CopyFrom(to_duration(math.ceil(exceeded.retry_s * 1000)))
        text += f"; try again in {exceeded.retry_s:.1f} s"
    code = _code(grpc.StatusCode.RESOURCE_EXHAUSTED)
    return pack_status(code, text, detail, reason=RefusalKind.LIMIT_REACHED.name)


def stalled_status(limit_s: float) -> Status:
    """Return the status for a reader that did not read for too long."""
    text = f"an answer was not read within {limit_s:g} s"
    code = _code(grpc.StatusCode.DEADLINE_EXCEEDED)
    return pack_status(code, text, None, reason="WATCHER_STALLED")


def _code(code: grpc.StatusCode) -> int:
    number: int = code.value[0]
    return number
