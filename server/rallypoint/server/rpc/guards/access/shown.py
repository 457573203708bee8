"""What a call shows of who makes it: metadata, and the certificate of its connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

from rallypoint.server.rpc.guards.access.identities import KEY
from rallypoint.wire.credentials import TOKEN_KEY, WORKER_TOKEN_KEY

SHARD_KEY = "rallypoint-shard"
"""Metadata of a forwarded call."""
_KEYS = frozenset({KEY, SHARD_KEY, TOKEN_KEY, WORKER_TOKEN_KEY})

Context = grpc.aio.ServicerContext[Any, Any]


def shown_by(context: Context) -> dict[str, str]:
    """Return the metadata that says who makes a call."""
    return {
        key: value
        for key, value in context.invocation_metadata() or ()
        if key in _KEYS and isinstance(value, str)
    }


def certificate_names(context: Context) -> tuple[str, ...]:
    """Return the common name and DNS names of the client's certificate, which gRPC has verified."""
    facts: Mapping[str, Any] = context.auth_context()
    return tuple(
        dict.fromkeys(
            value.decode("utf-8", "replace")
            for key in ("x509_common_name", "peer_dns")
            for value in facts.get(key, ())
        )
    )
