"""The methods of the contract, and which of their calls are about the jobs of all shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from msgspec import Struct

from rallypoint.v1 import calls_pb2
from rallypoint.wire.limits import SERVICES


class Route(Struct, frozen=True):
    """A method of the contract."""

    path: str
    """Such as "/rallypoint.v1.JobService/GetJob"."""
    service: str
    """Full name."""
    name: str
    subject: calls_pb2.Subject.ValueType
    request: type[Message]
    """Class of the requests."""
    response: type[Message]
    """Class of the answers."""
    is_stream: bool
    """There are many answers."""
    is_session: bool
    """There are many requests, too."""

    def to_handler(self, serve: Any) -> grpc.RpcMethodHandler[Any, Any]:
        """Return what gRPC calls for the method; `serve` is as a servicer's method."""
        kind: Any = grpc.unary_unary_rpc_method_handler
        if self.is_session:
            kind = grpc.stream_stream_rpc_method_handler
        elif self.is_stream:
            kind = grpc.unary_stream_rpc_method_handler
        handler: grpc.RpcMethodHandler[Any, Any] = kind(
            serve,
            request_deserializer=self.request.FromString,
            response_serializer=self.response.SerializeToString,
        )
        return handler


def _to_route(method: MethodDescriptor) -> Route:
    service = method.containing_service
    return Route(
        path=f"/{service.full_name}/{method.name}",
        service=service.full_name,
        name=method.name,
        subject=method.GetOptions().Extensions[calls_pb2.call].subject,
        request=GetMessageClass(method.input_type),
        response=GetMessageClass(method.output_type),
        is_stream=method.server_streaming,
        is_session=method.client_streaming,
    )


ROUTES: Mapping[str, Route] = {
    route.path: route
    for route in (_to_route(method) for service in SERVICES for method in service.methods)
}
"""By path."""
SERVICE_NAMES = tuple(dict.fromkeys(route.service for route in ROUTES.values()))
"""Full names of the services that a coordinator offers."""


def is_about_all(route: Route, request: Any) -> bool:
    """Return whether a request is about the jobs of all shards."""
    match route.subject:
        case calls_pb2.SUBJECT_ALL_JOBS | calls_pb2.SUBJECT_COORDINATOR:
            return True
        case calls_pb2.SUBJECT_JOB_OR_ALL:
            return not request.job_id
    return False
