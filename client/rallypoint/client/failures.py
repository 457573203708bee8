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
    if detail is not None:
        convert = _BY_DETAIL.get(type(detail))
        if convert is not None:
            return convert(failure, detail)
        if type(detail) in _COPIED:
            copy, names = _COPIED[type(detail)]
            return copy(text, **{name: getattr(detail, name) for name in names})
    if failure.code is grpc.StatusCode.INVALID_ARGUMENT:
        return errors.InvalidRequest(text, field=failure.details.field)
    if failure.details.reason == "PARTICIPANT_ARRIVED":
        return errors.AlreadyArrived(text)
    kind = _BY_CODE.get(failure.code, errors.RallypointError)
    return kind(text, status=failure.code.name)


def _broken(failure: Failure, detail: details_pb2.BarrierBroken) -> errors.RallypointError:
    return errors.BarrierBroken(
        failure.text,
        name=detail.name,
        generation=detail.generation,
        reason=_to_reason(detail.reason),
        missing=to_participants(detail.missing),
        missing_count=detail.missing_count,
        lost=to_participants(detail.lost),
        status=failure.code.name,
    )


def _to_reason(number: int) -> BreakReason:
    try:
        return BreakReason(number)
    except ValueError:
        return BreakReason.UNKNOWN


def to_participants(message: barrier_pb2.Participants) -> Participants:
    """Return the participants of a message."""
    return Participants(tuple(message.ranks), tuple(message.nodes), tuple(message.names))


def _stale(failure: Failure, detail: details_pb2.StaleSender) -> errors.RallypointError:
    kinds = {
        details_pb2.STALE_KIND_ROUND: errors.StaleRound,
        details_pb2.STALE_KIND_RUN: errors.StaleRun,
    }
    kind = kinds.get(detail.kind, errors.Stale)
    return kind(failure.text, expected=detail.expected, actual=detail.actual)


def _missing(failure: Failure, detail: details_pb2.KeysMissing) -> errors.RallypointError:
    keys = tuple(detail.keys)
    return errors.KeysMissing(failure.text, keys=keys, missing_count=detail.missing_count)


def _limit(failure: Failure, detail: details_pb2.LimitReached) -> errors.RallypointError:
    return errors.LimitReached(
        failure.text,
        limit=detail.limit,
        value=detail.value,
        retry_after_s=failure.retry_s,
        kind=detail.kind,
    )


_BY_DETAIL: dict[type[Message], Callable[[Failure, Any], errors.RallypointError]] = {
    details_pb2.BarrierBroken: _broken,
    details_pb2.KeysMissing: _missing,
    details_pb2.LimitReached: _limit,
    details_pb2.StaleSender: _stale,
}
_COPIED: dict[type[Message], tuple[Callable[..., errors.RallypointError], tuple[str, ...]]] = {
    details_pb2.BarrierMismatch: (errors.BarrierMismatch, ("name", "expected", "actual")),
    details_pb2.EventsCompacted: (errors.EventsCompacted, ("oldest_sequence", "epoch")),
    details_pb2.KeysCompacted: (errors.KeysCompacted, ("oldest_revision", "epoch")),
    details_pb2.RevisionCompacted: (errors.RevisionCompacted, ("oldest_revision", "epoch")),
    details_pb2.UnknownJob: (errors.UnknownJob, ("job_id",)),
    details_pb2.UnknownNode: (errors.UnknownNode, ("job_id", "node_name")),
}
"""Those whose fields an error has under the same names."""
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
