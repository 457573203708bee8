"""Error details: one message of `error_details.proto` in a gRPC status.

The status is a google.rpc.Status in the trailing metadata `grpc-status-details-bin`, as in other
gRPC libraries.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from rallypoint.v1 import error_details_pb2 as details_pb2

DETAILS_KEY = "grpc-status-details-bin"


def pack_status(code: int, text: str, detail: Message | None) -> Status:
    """Return a status with one detail message, or with none."""
    status = Status(code=code, message=text)
    if detail is not None:
        status.details.add().Pack(detail)
    return status


def unpack_detail(metadata: Iterable[tuple[str, str | bytes]] | None) -> Message | None:
    """Return the first detail of `error_details.proto` in a call's trailing metadata, or None."""
    for key, value in metadata or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            for packed in Status.FromString(value).details:
                found = _unpack(packed)
                if found is not None:
                    return found
    return None


def _unpack(packed: Any) -> Message | None:
    name = packed.TypeName().rpartition(".")[2]
    if name not in details_pb2.DESCRIPTOR.message_types_by_name:
        return None
    detail: Message = getattr(details_pb2, name)()
    return detail if packed.Unpack(detail) else None
