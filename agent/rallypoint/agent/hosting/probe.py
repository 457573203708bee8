"""What listens at an endpoint: nothing, a coordinator, or another program."""

from __future__ import annotations

import asyncio
import socket
from enum import Enum

CONNECT_S_MAX = 1.0
"""How long a connection may take."""
ANSWER_S_MAX = 1.0
"""How long a coordinator may take to say that it is one."""
SERVICE = "rallypoint.v1.AgentService"


class Listener(Enum):
    """Who answers at an endpoint."""

    COORDINATOR = "coordinator"
    FOREIGN = "foreign"
    """A program that certainly is none."""
    UNKNOWN = "unknown"
    """It does not answer. It may be a coordinator that is stalled, or just ends."""


def is_listening(host: str, port: int) -> bool:
    """Return whether something accepts connections there. Blocks, within a limit."""
    try:
        socket.create_connection((host, port), CONNECT_S_MAX).close()
    except (OSError, UnicodeError):
        return False
    return True


async def accepts(host: str, port: int) -> bool:
    """Return the same without blocking the event loop."""
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, UnicodeError, TimeoutError):
        return False
    writer.close()
    return True


async def identify(target: str) -> Listener:
    """Ask who listens at `host:port`."""
    # Imported here: `is_listening` is called before the helper process has started.
    import grpc
    import grpc.aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from rallypoint.wire.access import PLAIN
    from rallypoint.wire.channel import client_options
    from rallypoint.wire.credentials import Credentials

    async with Credentials(PLAIN).open_aio_channel(target, client_options()) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        try:
            await stub.Check(request, timeout=ANSWER_S_MAX)
        except grpc.aio.AioRpcError as error:
            # What a server of gRPC answers that has no health service, or not this one.
            foreign = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND)
            return Listener.FOREIGN if error.code() in foreign else Listener.UNKNOWN
    return Listener.COORDINATOR
