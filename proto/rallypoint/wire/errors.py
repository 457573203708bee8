"""Error details: one message of `error_details.proto` in a gRPC status, and three of google.rpc.

ErrorInfo carries the reason as a constant, RetryInfo the pause before another attempt, and
BadRequest the path of the field at fault, as tools of Google's APIs expect them.

The status is a google.rpc.Status in the trailing metadata `grpc-status-details-bin`, as in other
gRPC libraries.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from msgspec import Struct

from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.durations import set_ms, to_ms

DETAILS_KEY = "grpc-status-details-bin"
REASON_PREFIX = "REFUSAL_REASON_"
"""Of the values of RefusalReason; ErrorInfo has the rest of their names."""
DESCRIPTION_CHARS_MAX = 256
"""Details travel in metadata, which gRPC limits to 8 KiB; the status has the text."""
TEXT_CHARS_MAX = 1_024
"""The same: a text may repeat what a caller sent."""
DOMAIN = "rallypoint.v1"
"""Of the reasons in ErrorInfo."""


def pack_status(
    code: grpc.StatusCode,
    text: str,
    detail: Message | None,
    *,
    reason: details_pb2.RefusalReason.ValueType,
    field: str = "",
    retry_ms: int | None = None,
) -> Status:
    """Return a status with its details.

    Args:
        code: of the gRPC status.
        text: message for people.
        detail: message of `error_details.proto`, or None.
        reason: why, as a constant for programs.
        field: path of the field at fault in the request; empty when it is no single one.
        retry_ms: the shortest pause before another attempt; None: another one makes no sense.
    """
    # Imported here: most processes never refuse anything.
    from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo

    name = details_pb2.RefusalReason.Name(reason).removeprefix(REASON_PREFIX)
    status = Status(code=code.value[0], message=text[:TEXT_CHARS_MAX])
    if detail is not None:
        status.details.add().Pack(detail)
    status.details.add().Pack(ErrorInfo(reason=name, domain=DOMAIN))
    if retry_ms is not None:
        retry = RetryInfo()
        set_ms(retry.retry_delay, retry_ms)
        status.details.add().Pack(retry)
    if field:
        described = text[:DESCRIPTION_CHARS_MAX]
        violation = BadRequest.FieldViolation(field=field, description=described, reason=name)
        status.details.add().Pack(BadRequest(field_violations=[violation]))
    return status


class Details(Struct, frozen=True):
    """The details of a status."""

    own: Message | None = None
    """The first message of `error_details.proto`."""
    reason: str = ""
    """The constant of ErrorInfo; empty for a status that another program has made."""
    retry_ms: int | None = None
    """RetryInfo: when to try again."""
    field: str = ""
    """Path of the field at fault in the request; empty when it is no single one."""


def unpack_detail(metadata: Iterable[tuple[str, str | bytes]] | None) -> Message | None:
    """Return the first detail of `error_details.proto` in a call's trailing metadata, or None."""
    return next((own for own in map(_unpack, _packed(metadata)) if own is not None), None)


def unpack_details(metadata: Iterable[tuple[str, str | bytes]] | None) -> Details:
    """Return all that the trailing metadata of a call says."""
    # Imported here: see above.
    from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo

    own, reason, retry_ms, field = None, "", None, ""
    info, retry, request = ErrorInfo(), RetryInfo(), BadRequest()
    for packed in _packed(metadata):
        if packed.Unpack(info):
            reason = info.reason if info.domain == DOMAIN else ""
        elif packed.Unpack(retry):
            retry_ms = to_ms(retry.retry_delay)
        elif packed.Unpack(request):
            field = next((one.field for one in request.field_violations), "")
        else:
            own = _unpack(packed) if own is None else own
    return Details(own, reason, retry_ms, field)


def _packed(metadata: Iterable[tuple[str, str | bytes]] | None) -> Iterable[Any]:
    for key, value in metadata or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            yield from Status.FromString(value).details


def _unpack(packed: Any) -> Message | None:
    name = packed.TypeName().rpartition(".")[2]
    if name not in details_pb2.DESCRIPTOR.message_types_by_name:
        return None
    detail: Message = getattr(details_pb2, name)()
    return detail if packed.Unpack(detail) else None
