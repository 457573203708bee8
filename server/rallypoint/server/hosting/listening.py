"""Listens on an address, or says clearly that it cannot."""

from __future__ import annotations

import resource
from contextlib import suppress

import grpc

FILES_MAX = 1_048_576
"""Open files that a process gets where the system has no limit; Linux allows no more by default."""


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


def raise_file_limit() -> None:
    """Allow as many open files as the system lets this process have: each connection is one.

    The usual soft limit is 1,024, which a single host could use up with idle connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
