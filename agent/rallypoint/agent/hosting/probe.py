"""What listens at an endpoint: nothing, a coordinator, or another program."""

from __future__ import annotations

import asyncio
from enum import Enum
from functools import partial

from msgspec.structs import replace

from rallypoint.base.file_thread import FileThread
from rallypoint.base.names import LOOK_UP_S_MAX, connect, open_connection
from rallypoint.wire.access import Access

CONNECT_S_MAX = 1.0
"""How long a connection may take."""
ANSWER_S_MAX = 1.0
"""How long a coordinator may take to say that it is one."""
SERVICE = "rallypoint.v1.AgentService"


class ListenerKind(Enum):
    """What answers at an endpoint."""

    COORDINATOR = "coordinator"
    FOREIGN = "foreign"
    """A program that certainly is none."""
    UNKNOWN = "unknown"
    """It has answered or hung up. It may be a coordinator that just ends."""
    SILENT = "silent"
    """It does not answer. It may be a coordinator that is stalled."""


def is_listening(host: str, port: int) -> bool:
    """Return whether something accepts connections there. Blocks, within a limit."""
    try:
        connect(host, port, CONNECT_S_MAX).close()
    except OSError:
        return False
    return True


async def accepts(host: str, port: int) -> bool:
    """Return the same without blocking the event loop."""
    try:
        async with asyncio.timeout(LOOK_UP_S_MAX + CONNECT_S_MAX):
            _, writer = await open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def identify(target: str, access: Access, name: str) -> tuple[ListenerKind, str]:
    """Ask who listens at `host:port`, and return why it does not answer, if TLS is the reason.

    Args:
        target: host:port.
        access: of the agent.
        name: that its certificate must have, unless the access says another one.

    Raises:
        AccessFailed: the access has a file that is of no use.
    """
    # Imported here: `is_listening` is called before the helper process has started.
    import grpc
    import grpc.aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from rallypoint.wire.channel import client_options
    from rallypoint.wire.connecting import Unreachable, find_way
    from rallypoint.wire.credentials import Credentials
    from rallypoint.wire.handshakes import explain, is_closed, probe

    files = FileThread("probe")
    if access.uses_tls:
        access = replace(access, server_name=access.server_name or name)
    credentials = await files.begin(partial(Credentials, access)).future
    try:
        at = await find_way(target)
    except Unreachable:
        return ListenerKind.SILENT, ""  # it was known when a connection was made
    async with credentials.open_aio_channel(at, client_options()) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        try:
            await stub.Check(request, timeout=ANSWER_S_MAX)
        except grpc.aio.AioRpcError as error:
            # What a server of gRPC answers that has no health service, or not this one.
            foreign = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND)
            if error.code() in foreign:
                return ListenerKind.FOREIGN, ""
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return ListenerKind.SILENT, ""
            text = error.details() or ""
            if is_closed(text):
                why = await files.begin(partial(probe, target, access)).future
                return ListenerKind.UNKNOWN, why
            return ListenerKind.UNKNOWN, explain(text, target, access)
    return ListenerKind.COORDINATOR, ""
