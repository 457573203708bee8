"""The statuses with which the coordinator refuses calls, each with its details."""

from __future__ import annotations

import math

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status

from rallypoint.base.durations import describe_in_sentence
from rallypoint.base.limits import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from rallypoint.server.coordinator import CoordinatorEnded, InputRefused
from rallypoint.server.core.messages.refusals import Limit, Refusal, RefusalKind
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.inbox import InboxFull
from rallypoint.server.rpc.calls import CallRefused
from rallypoint.server.rpc.convert.checks import InvalidMessage
from rallypoint.server.rpc.guards.access.refusals import AccessRefused
from rallypoint.server.rpc.guards.peers import LimitExceeded
from rallypoint.server.rpc.refusals.table import AGAIN_MS, HELLO_AGAIN_MS, TABLE, Row
from rallypoint.server.rpc.status import invalid_status
from rallypoint.server.rpc.views.enums import LIMITS, OUTCOMES
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.durations import to_duration
from rallypoint.wire.errors import pack_status

WATCH_AGAIN_MS = 1_000
"""Pause before the next watch of a reader that was too slow."""
REASONS = {
    kind: details_pb2.RefusalReason.Value(f"REFUSAL_REASON_{kind.name}") for kind in RefusalKind
}
"""The reason of each refusal of the core: both have the same name."""


def to_status(error: BaseException) -> Status | None:
    """Return the status that an exception means to a caller; None: it says nothing to one."""
    match error:
        case CallRefused() | AccessRefused():
            return error.status
        case InvalidMessage():
            return invalid_status(error.path, error.problem)
        case DecodeError():
            return invalid_status("message", "cannot be decoded")
        case InputRefused():
            return refusal_status(error.refusal)
        case LimitExceeded():
            return limit_status(error)
        case InboxFull():
            return full_status()
        case CoordinatorEnded():
            return ended_status()
    return None


def refusal_status(refusal: Refusal) -> Status:
    """Return the status of a refusal."""
    row = TABLE[refusal.kind]
    text = row.text.format(
        **dict(refusal.facts), differences=_show_differences(refusal), advice=_advise(refusal)
    )
    return pack_status(
        _code(row.code),
        text,
        _detail(row, refusal),
        reason=REASONS[refusal.kind],
        field=row.field,
        retry_ms=row.retry_ms,
    )


def _advise(refusal: Refusal) -> str:
    """Return what to do about differences."""
    kept_ms = dict(refusal.facts).get("kept_ms")
    if not isinstance(kept_ms, int):
        return "start every agent of a job with the same values"
    kept = (
        f"none of its agents is attached, and it waits {describe_in_sentence(kept_ms)} more for one"
    )
    return f"{kept}: use its values, or cancel it first"


def _show_differences(refusal: Refusal) -> str:
    """Return how two specifications differ, with the names that the flags of an agent have."""
    facts, shown = dict(refusal.facts), {}
    for field, expected, actual in refusal.differences:
        if field in ("min_nodes", "max_nodes"):  # one flag for both
            shown["--nnodes"] = f"{facts['expected_nodes']} there and {facts['actual_nodes']} here"
        else:
            shown["--" + field.replace("_", "-")] = f"{expected} there and {actual} here"
    return "; ".join(f"{flag} is {values}" for flag, values in shown.items())


def _detail(row: Row, refusal: Refusal) -> Message | None:
    """Return the detail message of a refusal, with the refusal's facts in its fields."""
    if row.detail is None:
        return None
    known = row.detail.DESCRIPTOR.fields_by_name
    facts = {name: value for name, value in refusal.facts if name in known}
    outcome = facts.pop("outcome", None)
    detail = row.detail(**facts)
    match detail:
        case details_pb2.JobEnded():
            detail.outcome = OUTCOMES[Outcome(outcome)]
        case details_pb2.StaleSender():
            detail.kind = row.stale
        case details_pb2.LimitReached():
            detail.kind = LIMITS[Limit(detail.limit)]
        case details_pb2.SpecMismatch():
            for field, expected, actual in refusal.differences:
                detail.differences.add(field=field, expected=expected, actual=actual)
    return detail


def protocol_status(lowest: int, highest: int) -> Status:
    """Return the status for an agent that has no protocol version in common with us.

    Args:
        lowest: version that the agent speaks.
        highest: version that the agent speaks.
    """
    detail = details_pb2.ProtocolMismatch(
        coordinator_max=PROTOCOL_VERSION,
        agent_max=highest,
        coordinator_min=PROTOCOL_VERSION_MIN,
        agent_min=lowest,
    )
    older = "agent" if highest < PROTOCOL_VERSION_MIN else "coordinator"
    text = (
        f"the agent speaks {_show_versions(lowest, highest)}, this coordinator "
        f"{_show_versions(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION)}: upgrade the {older}"
    )
    return pack_status(
        _code(grpc.StatusCode.FAILED_PRECONDITION),
        text,
        detail,
        reason=details_pb2.REFUSAL_REASON_PROTOCOL_MISMATCH,
        field="hello.protocol_version",
    )


def _show_versions(lowest: int, highest: int) -> str:
    if lowest == highest:
        return f"protocol version {highest}"
    return f"protocol versions {lowest} to {highest}"


def lost_status() -> Status:
    """Return the status for a session that counts as lost. The agent may open a new stream."""
    detail = details_pb2.StaleSender(kind=details_pb2.STALE_KIND_SESSION)
    return pack_status(
        _code(grpc.StatusCode.ABORTED),
        "this session counts as lost",
        detail,
        reason=details_pb2.REFUSAL_REASON_SESSION_LOST,
        field="session_id",
        retry_ms=HELLO_AGAIN_MS,
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
        "the coordinator has ended, or stopped serving this job",
        None,
        reason=details_pb2.REFUSAL_REASON_COORDINATOR_ENDED,
        retry_ms=AGAIN_MS,
    )


def full_status() -> Status:
    """Return the status for an agent behind a relay whose shard has no room for what it says."""
    return pack_status(
        _code(grpc.StatusCode.UNAVAILABLE),
        "the coordinator has more to do than it can; the agent tries again",
        None,
        reason=REASONS[RefusalKind.LIMIT_REACHED],
        retry_ms=AGAIN_MS,
    )


def limit_status(exceeded: LimitExceeded) -> Status:
    """Return the status for a limit that is reached."""
    limit, retry_ms = exceeded.limit, None
    text = f"the limit of {exceeded.value} {limit.value} is reached"
    detail = details_pb2.LimitReached(limit=limit.value, value=exceeded.value, kind=LIMITS[limit])
    if exceeded.retry_s is not None:
        retry_ms = math.ceil(exceeded.retry_s * 1000)
        detail.retry_after.CopyFrom(to_duration(retry_ms))
        text += f"; try again in {exceeded.retry_s:.1f} s"
    code, reason = _code(grpc.StatusCode.RESOURCE_EXHAUSTED), REASONS[RefusalKind.LIMIT_REACHED]
    return pack_status(code, text, detail, reason=reason, retry_ms=retry_ms)


def stalled_status(limit_s: float) -> Status:
    """Return the status for a reader that did not read for too long."""
    text = f"an answer was not read within {limit_s:g} s"
    code, reason = (
        _code(grpc.StatusCode.DEADLINE_EXCEEDED),
        details_pb2.REFUSAL_REASON_WATCHER_STALLED,
    )
    return pack_status(code, text, None, reason=reason, retry_ms=WATCH_AGAIN_MS)


def _code(code: grpc.StatusCode) -> int:
    number: int = code.value[0]
    return number
