"""The services that every gRPC tool expects: health and reflection."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


class Health:
    """Standard health of the whole server and of each service."""

    def __init__(self, server: grpc.aio.Server, services: Sequence[str]) -> None:
        """Add the service to `server`; it says NOT_SERVING until told otherwise."""
        self._servicer = health.aio.HealthServicer()
        self._names = ("", *services)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_serving(self, is_serving: bool) -> None:
        """Say SERVING or NOT_SERVING."""
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if is_serving else kinds.NOT_SERVING
        for name in self._names:
            await self._servicer.set(name, status)


def add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Let clients list and call the services, by both names of the reflection protocol.

    grpcio-reflection has only v1alpha; the messages of v1 are the same, so the same servicer
    answers under that name too.
    """
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    servicer = ReflectionServicer(service_names=names)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(
        REFLECTION_V1, {"ServerReflectionInfo": handler}
    )
    server.add_generic_rpc_handlers((handlers,))
