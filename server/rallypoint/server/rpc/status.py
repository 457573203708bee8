"""Ends calls with a status that carries details."""

from __future__ import annotations

from typing import NoReturn

import grpc
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from rallypoint.server.rpc.calls import Context
from rallypoint.server.rpc.guards.rests import rest
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.errors import pack_status

HELLO_AGAIN_MS = 1_000
"""Pause before the next stream of an agent that was too slow with its Hello."""


def invalid_status(path: str, problem: str) -> Status:
    """Return the status for a field that breaks the contract."""
    code: int = grpc.StatusCode.INVALID_ARGUMENT.value[0]
    reason = details_pb2.REFUSAL_REASON_INVALID_FIELD
    return pack_status(code, f"{path}: {problem}", None, reason=reason, field=path)


def silent_status(problem: str) -> Status:
    """Return the status for a stream on which no message arrived in time. The agent may retry."""
    code: int = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    reason = details_pb2.REFUSAL_REASON_NO_HELLO
    return pack_status(code, problem, None, reason=reason, field="message", retry_ms=HELLO_AGAIN_MS)


_RESTING = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
"""The statuses of calls that do not succeed when they are made again at once."""


async def abort_with(context: Context, status: Status, *, rests: bool = True) -> NoReturn:
    """End the call with `status` and its details. A refusal of many may have to wait.

    Args:
        context: of the call.
        status: for the caller.
        rests: whether it counts here as a refusal; another coordinator may have counted it.
    """
    converted = rpc_status.to_status(status)
    if rests and converted.code in _RESTING:
        await rest()
    await context.abort(converted.code, converted.details, converted.trailing_metadata)
