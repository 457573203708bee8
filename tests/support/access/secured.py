"""Channels of tests with TLS and a token, for code that makes its calls without metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from msgspec import Struct

from rallypoint.wire.access import Access
from rallypoint.wire.channel import client_options
from rallypoint.wire.credentials import Credentials
from rallypoint.wire.resolved import resolve
from support.processes.jobs import Jobs


class _Details(Struct):
    """Of a call; what gRPC's interceptors are given."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Adding(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds the metadata of credentials to each call."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def _add(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = (*(details.metadata or ()), *self._credentials.metadata())
        added = _Details(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        return continuation(added, request)

    intercept_unary_unary = _add  # type: ignore[assignment]  # for any kind of message
    intercept_unary_stream = _add  # type: ignore[assignment]


def open_secured(target: str, access: Access) -> grpc.Channel:
    """Return a channel whose calls prove who makes them."""
    credentials = Credentials(access)
    channel = credentials.open_channel(resolve(target), client_options())
    return grpc.intercept_channel(channel, _Adding(credentials))


def secured_jobs(access: Access) -> Callable[[str], Jobs]:
    """Return what connects to a coordinator at an address."""
    return lambda target: Jobs(target, open_secured(target, access))
