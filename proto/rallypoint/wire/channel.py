"""gRPC options that both sides need.

A coordinator's clients are on the same network and want to know at once: no proxy from the
environment, no shared subchannels (each attempt to connect is a fresh one), no back-off of gRPC's
own, because the agent has its own with jitter.
"""

from __future__ import annotations

Options = list[tuple[str, str | int]]

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""gRPC's default, stated: a Hello of 4,096 workers with their exits stays below it."""


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
        # Off, or a second coordinator on the same port would silently share it.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        # A peer whose host is gone without a word is found by the lease; keepalive only frees the
        # transport of streams that nothing is sent on.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]
