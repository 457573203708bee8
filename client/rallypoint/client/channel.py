"""Where a client connects, and how its channels behave.

A channel notices a dead connection, and reconnects soon. A client that knows several coordinators
need not wait for one of them: it gives up a silent one earlier, and calls the next.
"""

from __future__ import annotations

from rallypoint.base.addresses import parse_endpoints
from rallypoint.wire.channel import Options, client_options
from rallypoint.wire.tokens import WORKER_TOKEN_KEY

KEEPALIVE_S = 10
KEEPALIVE_TIMEOUT_S = 5
"""A host that vanishes without a word is noticed after the sum of both."""
CONNECT_S_MAX = 2
RECONNECT_S_MAX = 2
SHARED_KEEPALIVE_S = 2
SHARED_KEEPALIVE_TIMEOUT_S = 2
SHARED_CONNECT_S_MAX = 1
"""The same for one of several coordinators."""


def read_targets(text: str) -> tuple[str, ...]:
    """Return the addresses that a caller has given: one, or several with commas in between.

    Raises:
        ValueError: one of several is not `host[:port]`.
    """
    try:
        return tuple(parse_endpoints(text).split(","))
    except ValueError:
        if "," in text:
            raise
        return (text,)  # whatever else gRPC can connect to


def channel_options(*, is_shared: bool) -> Options:
    """Return the options of a client's channel; `is_shared`: there are other coordinators."""
    interval_s = SHARED_KEEPALIVE_S if is_shared else KEEPALIVE_S
    timeout_s = SHARED_KEEPALIVE_TIMEOUT_S if is_shared else KEEPALIVE_TIMEOUT_S
    connect_s = SHARED_CONNECT_S_MAX if is_shared else CONNECT_S_MAX
    return [
        *client_options(),
        ("grpc.keepalive_time_ms", interval_s * 1000),
        ("grpc.keepalive_timeout_ms", timeout_s * 1000),
        ("grpc.http2.ping_timeout_ms", timeout_s * 1000),  # gRPC 1.76 waits a minute without it
        ("grpc.http2.max_pings_without_data", 0),  # as long as a call waits
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", connect_s * 1000),  # how long to try to connect
        ("grpc.max_reconnect_backoff_ms", RECONNECT_S_MAX * 1000),
    ]


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of every call; `token` may be empty."""
    return ((WORKER_TOKEN_KEY, token),) if token else ()
