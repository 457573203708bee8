"""gRPC options of both sides.

Clients are on the coordinator's network and have to notice failures at once. So they ignore proxies
from the environment and share no subchannels: every attempt to connect starts without gRPC's
back-off. The agent has its own back-off, with jitter.
"""

from __future__ import annotations

from rallypoint.base.limits import NODES_PER_JOB_MAX

Options = list[tuple[str, str | int]]

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""gRPC's default. A Hello with the exits of 4,096 workers stays below it."""
HANDSHAKE_MS_MAX = 20_000
"""Longest handshake of a new connection, of TLS and HTTP/2. Clients give up sooner."""

IDLE_MS_MAX = 300_000
"""How long a connection may be open without a call. A session and a watch are calls."""

PENDING_CALLS_MAX = 2 * NODES_PER_JOB_MAX
"""New calls that may wait for the server to begin them: when the network fails, every agent of the
largest job opens a stream in the same second, and its workers call. gRPC has no such limit for
connections of HTTP/2: 4,096 calls waited where 10 were allowed. Releases whose server is made of
promises refuse calls at random when more than 1,000 wait. A call that has waited for 30 s ends as
CANCELLED, whatever the limit; its client tries again."""


def client_options() -> Options:
    """Return the options of a client's channel."""
    return [
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.service_config_disable_resolution", 1),
    ]


def server_options() -> Options:
    """Return the options of the server."""
    return [
        # Otherwise a second coordinator could listen on the same port, unnoticed.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        # No compression: gRPC inflates a message before it checks its size, so a few bytes could
        # fill the memory. A compressed message is refused as UNIMPLEMENTED. The one bit is "none".
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # What a call sends beyond what is read stays with its sender, but for 64 KiB. By default
        # gRPC takes megabytes of each call on a fast network.
        ("grpc.http2.bdp_probe", 0),
        # A connection that says nothing takes a descriptor for so long; gRPC's default is 120 s.
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
        ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
        # A connection without calls is closed; a client that calls again opens another.
        ("grpc.max_connection_idle_ms", IDLE_MS_MAX),
        # The lease detects a dead host. Keepalive only frees the connections of idle streams.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.ping_timeout_ms", 20_000),  # gRPC waits a minute without it
        ("grpc.http2.max_ping_strikes", 0),
    ]
