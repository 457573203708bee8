"""The statuses with which the coordinator refuses calls, each with its details.

The core names why it refuses an input, and the facts. What stands before the core raises an
exception, which `to_status` knows, or makes the status itself.
"""

from __future__ import annotations

import math
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from rallypoint.base.limits import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from rallypoint.base.values import describe_in_sentence
from rallypoint.server.contract.calls import CallRefused, InvalidMessage, LimitExceeded
from rallypoint.server.contract.mappers import LIMITS
from rallypoint.server.contract.refusals import AGAIN_MS, status_of
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.shell.coordinator import CoordinatorEnded, InputRefused
from rallypoint.server.shell.inbox import InboxFull
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.durations import to_duration
from rallypoint.wire.errors import pack_status
from rallypoint.wire.mapping import numbers_of

REASONS = numbers_of(RefusalKind, details_pb2.RefusalReason.DESCRIPTOR)
"""The reason of each refusal of the core."""


def to_status(error: BaseException) -> Status | None:
    """Return the status that an exception means to a caller; None: it says nothing to one."""
    match error:
        case CallRefused():
            return error.status
        case InvalidMessage():
            return invalid_status(error)
        case DecodeError():
            return invalid_status(InvalidMessage("message", "cannot be decoded"))
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
    """Return the status of a refusal of the core."""
    facts: dict[str, Any] = dict(refusal.facts)
    if refusal.kind is RefusalKind.SPEC_MISMATCH:
        facts |= _describe_mismatch(refusal, facts)
    return status_of(REASONS[refusal.kind], **facts)


def _describe_mismatch(refusal: Refusal, facts: dict[str, Any]) -> dict[str, Any]:
    """Return how two specifications differ, with the names of an agent's flags; and what to do."""
    shown, advice = {}, "start every agent of a job with the same values"
    for field, expected, actual in refusal.differences:
        if field in ("min_nodes", "max_nodes"):  # one flag for both
            shown["--nnodes"] = f"{facts['expected_nodes']} there and {facts['actual_nodes']} here"
        else:
            shown["--" + field.replace("_", "-")] = f"{expected} there and {actual} here"
    if "kept_ms" in facts:
        kept = describe_in_sentence(facts["kept_ms"])
        advice = (
            f"none of its agents is attached, and it waits {kept} more for one: use its values, or "
            "cancel it first"
        )
    names = ("field", "expected", "actual")
    return {
        "shown": "; ".join(f"{flag} is {values}" for flag, values in shown.items()),
        "advice": advice,
        "differences": [dict(zip(names, one, strict=True)) for one in refusal.differences],
    }


def invalid_status(invalid: InvalidMessage) -> Status:
    """Return the status for a message that breaks the contract."""
    reason = details_pb2.REFUSAL_REASON_INVALID_FIELD
    return status_of(reason, path=invalid.path, problem=invalid.problem)


def silent_status(problem: str) -> Status:
    """Return the status for a stream on which no message arrived in time. The agent may retry."""
    return status_of(details_pb2.REFUSAL_REASON_NO_HELLO, problem=problem)


def protocol_status(lowest: int, highest: int) -> Status:
    """Return the status for an agent that has no protocol version in common with us.

    Args:
        lowest: version that the agent speaks.
        highest: version that the agent speaks.
    """
    return status_of(
        details_pb2.REFUSAL_REASON_PROTOCOL_MISMATCH,
        agent=_show_versions(lowest, highest),
        coordinator=_show_versions(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION),
        older="agent" if highest < PROTOCOL_VERSION_MIN else "coordinator",
        coordinator_max=PROTOCOL_VERSION,
        agent_max=highest,
        coordinator_min=PROTOCOL_VERSION_MIN,
        agent_min=lowest,
    )


def _show_versions(lowest: int, highest: int) -> str:
    if lowest == highest:
        return f"protocol version {highest}"
    return f"protocol versions {lowest} to {highest}"


def lost_status() -> Status:
    """Return the status for a session that counts as lost. The agent may open a new stream."""
    return status_of(details_pb2.REFUSAL_REASON_SESSION_LOST)


def replaced_status(newer: int, older: int) -> Status:
    """Return the status for a connection of an agent that has a newer one."""
    return status_of(details_pb2.REFUSAL_REASON_STALE_CONNECTION, expected=newer, actual=older)


def internal_status(incident: str) -> Status:
    """Return the status for a bug of the coordinator; `incident` names its line in the log."""
    return status_of(details_pb2.REFUSAL_REASON_INTERNAL, incident=incident)


def ended_status() -> Status:
    """Return the status for a coordinator whose loop has ended. Its agents look for another one."""
    return status_of(details_pb2.REFUSAL_REASON_COORDINATOR_ENDED)


def full_status() -> Status:
    """Return the status for an agent behind a relay whose shard has no room for what it says."""
    return pack_status(
        grpc.StatusCode.UNAVAILABLE,
        "the coordinator has more to do than it can; the agent tries again",
        None,
        reason=details_pb2.REFUSAL_REASON_LIMIT_REACHED,
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
    code, reason = grpc.StatusCode.RESOURCE_EXHAUSTED, details_pb2.REFUSAL_REASON_LIMIT_REACHED
    return pack_status(code, text, detail, reason=reason, retry_ms=retry_ms)


def stalled_status(limit_s: float) -> Status:
    """Return the status for a reader that did not read for too long."""
    return status_of(details_pb2.REFUSAL_REASON_WATCHER_STALLED, limit_s=limit_s)


def no_owner_status(shard: int, trouble: str = "") -> Status:
    """Return the status for a job that no coordinator serves at the moment.

    Args:
        shard: of the job.
        trouble: why it has no owner; empty: it moves.
    """
    if trouble:
        return store_status(trouble)
    text = f"no coordinator owns shard {shard} at the moment: another one takes it within seconds"
    return status_of(details_pb2.REFUSAL_REASON_NO_OWNER, problem=text)


def store_status(trouble: str) -> Status:
    """Return the status for a call that cannot be decided, because the store is out of reach."""
    return status_of(details_pb2.REFUSAL_REASON_STORE_UNAVAILABLE, trouble=trouble)


def owner_lost_status(shard: int, address: str, trouble: str = "") -> Status:
    """Return the status for a call whose owner has not answered, or is the owner no more.

    Args:
        shard: that the call is about.
        address: of the owner.
        trouble: why there is no other owner, as far as is known.
    """
    trouble = f"; {trouble}" if trouble else ""
    reason = details_pb2.REFUSAL_REASON_OWNER_LOST
    return status_of(reason, shard=shard, address=address, trouble=trouble)


def not_owner_status(address: str, coordinator_id: str, trouble: str = "") -> Status:
    """Return the status for an agent whose job another coordinator owns.

    Args:
        address: of the owner.
        coordinator_id: of the store.
        trouble: why that is not certain.
    """
    return status_of(
        details_pb2.REFUSAL_REASON_NOT_OWNER,
        address=address,
        coordinator_id=coordinator_id,
        trouble=f", as far as is known: {trouble}" if trouble else "",
    )
