"""The RPCs that a running coordinator offers, as reflection shows them."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf.descriptor_pb2 import FileDescriptorProto, MethodDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2

from support.core.served import LIMIT_S

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


async def find_rpcs(
    channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...] = ()
) -> dict[str, MethodDescriptorProto]:
    """Return the methods by service and name; our services are without their package."""
    ask = reflection_pb2.ServerReflectionRequest
    call: Any = channel.stream_stream(
        REFLECTION,
        request_serializer=ask.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(timeout=LIMIT_S, metadata=metadata)
    await call.write(ask(list_services=""))
    services = [one.name for one in (await call.read()).list_services_response.service]
    found: dict[str, MethodDescriptorProto] = {}
    for service in services:
        await call.write(ask(file_containing_symbol=service))
        answer = (await call.read()).file_descriptor_response
        for file in map(FileDescriptorProto.FromString, answer.file_descriptor_proto):
            for one in file.service:
                if f"{file.package}.{one.name}" == service:
                    prefix = service.removeprefix("rallypoint.v1.")
                    found |= {f"{prefix}/{method.name}": method for method in one.method}
    call.cancel()
    return found
