"""What ends a call at a relay: a peer that has gone is no bug, anything else is one."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.relay import forwarding
from rallypoint.relay.forwarding import rooted

GONE = grpc.aio.InternalError("Failed ExecuteBatch")


class Context:
    """A call to which no status was sent."""

    code: grpc.StatusCode | None = None

    def done(self) -> bool:
        return False

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        self.code = code


async def end_with(error: Exception) -> grpc.StatusCode | None:
    """Return the status of a call whose handler raises an error; None: it has sent none."""

    async def serve(request: Any, context: Any) -> None:
        raise error

    context: Any = Context()
    await rooted(serve)(None, context)
    code: grpc.StatusCode | None = context.code
    return code


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GONE, None),
        (ExceptionGroup("", [GONE, GONE]), None),
        (ExceptionGroup("", [GONE, ValueError("a bug")]), grpc.StatusCode.INTERNAL),
        (ValueError("a bug"), grpc.StatusCode.INTERNAL),
    ],
)
async def test_end_of_a_call(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: grpc.StatusCode | None
) -> None:
    """Only what a peer that has gone causes is quiet."""
    monkeypatch.setattr(forwarding, "CANCEL_S_MAX", 0.0)

    assert await end_with(error) == expected
