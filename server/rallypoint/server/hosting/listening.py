"""Listens on an address, or says clearly that it cannot."""

from __future__ import annotations

import grpc


class CannotListen(Exception):
    """The port is in use, or the address is not this host's."""


def bind(server: grpc.aio.Server, address: str) -> int:
    """Let a server listen; return the port.

    Args:
        server: not started.
        address: `host:port`; port 0: any free one.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
    """
    try:
        port: int = server.add_insecure_port(address)
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {address}") from error
    return port
