"""Ends calls with a status that carries details."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from rallypoint.wire.errors import pack_status


def invalid_status(path: str, problem: str) -> Status:
    """Return the status for a field that breaks the contract."""
    code: int = grpc.StatusCode.INVALID_ARGUMENT.value[0]
    return pack_status(code, f"{path}: {problem}", None, reason="INVALID_FIELD", field=path)


def silent_status(problem: str) -> Status:
    """Return the status for a stream on which no message arrived in time. The agent may retry."""
    code: int = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    return pack_status(code, problem, None, reason="NO_HELLO", field="message")


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], status: Status) -> NoReturn:
    """End the call with `status` and its details."""
    converted = rpc_status.to_status(status)
    await context.abort(converted.code, converted.details, converted.trailing_metadata)
