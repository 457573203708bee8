"""How a client's channel behaves: it notices a dead connection, and reconnects soon."""

from __future__ import annotations

from rallypoint.wire.channel import Options, client_options
from rallypoint.wire.tokens import WORKER_TOKEN_KEY

KEEPALIVE_S = 10
KEEPALIVE_TIMEOUT_S = 5
"""A host that vanishes without a word is noticed after the sum of both."""
CONNECT_S_MAX = 2
RECONNECT_S_MAX = 2


def channel_options() -> Options:
    """Return the options of a client's channel."""
    return [
        *client_options(),
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
        ("grpc.http2.max_pings_without_data", 0),  # as long as a call waits
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", CONNECT_S_MAX * 1000),  # how long to try to connect
        ("grpc.max_reconnect_backoff_ms", RECONNECT_S_MAX * 1000),
    ]


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of every call; `token` may be empty."""
    return ((WORKER_TOKEN_KEY, token),) if token else ()
