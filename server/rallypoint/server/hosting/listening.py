"""Listens on an address, or says clearly that it cannot."""

from __future__ import annotations

import grpc


class CannotListen(Exception):
    """The port is in use, or the address is not this host's."""


def bind(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Let a server listen; return the port.

    Args:
        server: not started.
        address: `host:port`; port 0: any free one.
        credentials: for TLS; None: connections are plain.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
    """
    try:
        port: int
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {address}") from error
    return port
