"""The standard services that gRPC tools expect: health and reflection."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from rallypoint.server.access.usage.peers import host_of
from rallypoint.server.access.usage.quotas import HostQuota
from rallypoint.server.contract.calls import Context
from rallypoint.server.core.messages.refusals import Limit

REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
REFLECTION_V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"
REFLECTION_METHODS = frozenset(
    f"/{name}/ServerReflectionInfo" for name in (REFLECTION_V1, REFLECTION_V1ALPHA)
)


class HealthService:
    """The health service of gRPC: whether the server and each of its services are serving."""

    def __init__(self, server: grpc.aio.Server, services: Sequence[str]) -> None:
        """Add the service to `server`; the status is NOT_SERVING until `set_serving`."""
        self._servicer = _HealthServicer()
        self._names = ("", *services)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_serving(self, is_serving: bool) -> None:
        """Set the status to SERVING or NOT_SERVING."""
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if is_serving else kinds.NOT_SERVING
        for name in self._names:
            await self._servicer.set(name, status)


class _HealthServicer(health.aio.HealthServicer):  # type: ignore[misc]  # it has no annotations
    """The servicer of gRPC, with a limit for each host: it answers everyone."""

    def __init__(self) -> None:
        super().__init__()
        self._watches = HostQuota(Limit.HEALTH_WATCHES_PER_HOST, "HEALTH_WATCHES_PER_HOST_MAX")

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """Write the status of a service whenever it changes.

        Raises:
            LimitExceeded: when the host has as many watches as it may have.
        """
        with self._watches.taking(host_of(context.peer())):
            await super().Watch(request, context)


def add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Let clients list and describe the services, under both names of the reflection protocol."""
    names = (*services, health.SERVICE_NAME, REFLECTION_V1, REFLECTION_V1ALPHA)
    server.add_generic_rpc_handlers((_Reflection(names),))


class _Reflection(grpc.GenericRpcHandler):
    """Finds the handler of the reflection service, for gRPC."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        if handler_call_details.method in REFLECTION_METHODS:
            return self._handler
        return None

    @cached_property
    def _handler(self) -> grpc.RpcMethodHandler[Any, Any]:
        # Imported at the first call: with --standalone, the first worker would wait for it.
        from grpc_reflection.v1alpha import reflection_pb2

        from rallypoint.server.api.about.reflection import Reflection

        return grpc.stream_stream_rpc_method_handler(
            Reflection(self._names).ServerReflectionInfo,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
