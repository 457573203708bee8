"""Reads the status of a failed call, with the details of google.rpc, as one of our errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from msgspec import Struct

from rallypoint.base.names import Unresolved
from rallypoint.client import errors
from rallypoint.client.values import BreakReason, Participants
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.errors import Details, unpack_details

NOT_COUNTED = frozenset({"NOT_READY", "NO_OWNER"})
"""Reasons of refusals after which a request has certainly changed nothing."""
NO_CONNECTION = "failed to connect to all addresses"
"""What gRPC's text begins with when an attempt found no connection."""

T = TypeVar("T", bound=Message)


class Unresolvable(grpc.RpcError):
    """How an attempt ends that has not begun: no address of the coordinator's name is known.

    It is both the error and the future of that attempt.
    """

    def __init__(self, error: Unresolved) -> None:
        """Keep why."""
        super().__init__(str(error))

    def code(self) -> grpc.StatusCode:
        """Return the status of a coordinator that cannot be reached."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """Return why the name has no address."""
        return str(self)

    def trailing_metadata(self) -> Any:
        """Return nothing."""
        return ()

    def done(self) -> bool:
        """Return whether the attempt has ended."""
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Raise the error."""
        raise self

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        """Call at once."""
        call(self)


class Failure(Struct, frozen=True):
    """How an attempt ended."""

    code: grpc.StatusCode
    text: str
    details: Details = Details()
    is_final: bool = False
    """TLS keeps this client from a coordinator that it has never reached."""
    was_sent: bool = True
    """False when there was certainly no connection for the attempt."""

    @property
    def may_have_counted(self) -> bool:
        """True unless nothing was sent, or the coordinator has refused it without a change."""
        return self.was_sent and self.details.reason not in NOT_COUNTED

    @property
    def retry_s(self) -> float | None:
        """Return when the coordinator wants the next attempt; None: it did not say."""
        retry_ms = self.details.retry_ms
        return None if retry_ms is None else retry_ms / 1000


def read_failure(error: Any) -> Failure:
    """Return how a call failed; `error` is a grpc.RpcError of either kind of channel."""
    metadata: Iterable[tuple[str, str | bytes]] | None = error.trailing_metadata()
    text = error.details() or ""
    was_sent = not isinstance(error, Unresolvable) and not text.startswith(NO_CONNECTION)
    return Failure(error.code(), text, unpack_details(metadata), was_sent=was_sent)


def to_error(failure: Failure) -> errors.RallypointError:
    """Return the error that a caller gets."""
    error = _convert(failure)
    error.refusal = failure.details.reason
    return error


def _convert(failure: Failure) -> errors.RallypointError:
    detail, text = failure.details.own, failure.text
    if failure.is_final:
        return errors.HandshakeFailed(text)
    if detail is not None and type(detail) in _BY_DETAIL:
        kind, names = _BY_DETAIL[type(detail)]
        facts = {name: getattr(detail, name) for name in names}
        return _with_facts(kind, facts, failure, detail)
    if failure.code is grpc.StatusCode.INVALID_ARGUMENT:
        return errors.InvalidRequest(text, field=failure.details.field)
    if failure.details.reason == "PARTICIPANT_ARRIVED":
        return errors.AlreadyArrived(text)
    kind = _BY_CODE.get(failure.code, errors.RallypointError)
    return kind(text, status=failure.code.name)


def _with_facts(
    kind: type[errors.RallypointError], facts: dict[str, Any], failure: Failure, detail: Any
) -> errors.RallypointError:
    """Return an error with the fields of a detail, those in other types that the error has."""
    match detail:
        case details_pb2.BarrierBroken():
            facts["reason"] = _to_reason(detail.reason)
            facts["status"] = failure.code.name
            facts |= {name: to_participants(facts[name]) for name in ("missing", "lost")}
        case details_pb2.KeysMissing():
            facts["keys"] = tuple(detail.keys)
        case details_pb2.LimitReached():
            facts["retry_after_s"] = failure.retry_s
        case details_pb2.StaleSender():
            kind = _STALE.get(detail.kind, kind)
    return kind(failure.text, **facts)


def _to_reason(number: int) -> BreakReason:
    try:
        return BreakReason(number)
    except ValueError:
        return BreakReason.UNKNOWN


def to_participants(message: barrier_pb2.Participants) -> Participants:
    """Return the participants of a message."""
    return Participants(tuple(message.ranks), tuple(message.nodes), tuple(message.names))


_BY_DETAIL: dict[type[Message], tuple[type[errors.RallypointError], tuple[str, ...]]] = {
    details_pb2.BarrierBroken: (
        errors.BarrierBroken,
        ("name", "generation", "reason", "missing", "missing_count", "lost"),
    ),
    details_pb2.BarrierMismatch: (errors.BarrierMismatch, ("name", "expected", "actual")),
    details_pb2.EventsCompacted: (errors.EventsCompacted, ("oldest_sequence", "epoch")),
    details_pb2.KeysCompacted: (errors.KeysCompacted, ("oldest_revision", "epoch")),
    details_pb2.KeysMissing: (errors.KeysMissing, ("keys", "missing_count")),
    details_pb2.LimitReached: (errors.LimitReached, ("limit", "value", "kind")),
    details_pb2.RevisionCompacted: (errors.RevisionCompacted, ("oldest_revision", "epoch")),
    details_pb2.StaleSender: (errors.Stale, ("expected", "actual")),
    details_pb2.UnknownJob: (errors.UnknownJob, ("job_id",)),
    details_pb2.UnknownNode: (errors.UnknownNode, ("job_id", "node_name")),
}
"""The error for each detail, and the fields of both."""
_STALE = {
    details_pb2.STALE_KIND_ROUND: errors.StaleRound,
    details_pb2.STALE_KIND_RUN: errors.StaleRun,
}
_BY_CODE: dict[grpc.StatusCode, type[errors.RallypointError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.Unavailable,
    grpc.StatusCode.CANCELLED: errors.Unavailable,
    grpc.StatusCode.DATA_LOSS: errors.Forgotten,
    grpc.StatusCode.UNAUTHENTICATED: errors.NotAllowed,
    grpc.StatusCode.PERMISSION_DENIED: errors.NotAllowed,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Refused,
    grpc.StatusCode.UNIMPLEMENTED: errors.Unsupported,
    grpc.StatusCode.INTERNAL: errors.InternalError,
}
