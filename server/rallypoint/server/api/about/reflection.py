"""Reflection that shows the comments of the contract.

The descriptors in the stubs have no comments: the compiler leaves them out. So the files of the
contract are served from a descriptor set that has them, which `make proto` writes beside the stubs.
All other files, such as those of google.protobuf, come from the stubs.

grpcio-reflection has only v1alpha of the reflection protocol. The messages of v1 are the same, so
its descriptor is made from that of v1alpha.

Loaded at the first call: it takes longer than the rest of a coordinator's start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib.resources import files

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.rpc import error_details_pb2  # noqa: F401  # clients ask for the types of details
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from rallypoint.server.access.usage.peers import host_of
from rallypoint.server.access.usage.quotas import HostQuota
from rallypoint.server.contract.calls import Context
from rallypoint.server.core.messages.refusals import Limit

SET_FILE = "descriptors.binpb"
"""In the package of the stubs."""
_NOT_FOUND: int = grpc.StatusCode.NOT_FOUND.value[0]


class Reflection(ReflectionServicer):  # type: ignore[misc]  # published without annotations
    """Serves both versions of the protocol."""

    def __init__(self, services: Sequence[str]) -> None:
        """Read the descriptors; `services` are the full names of those to list."""
        super().__init__(service_names=services)
        package = files("rallypoint.v1")
        found = FileDescriptorSet.FromString((package / SET_FILE).read_bytes())
        self._commented = {file.name: file.SerializeToString() for file in found.file}
        self._streams = HostQuota(Limit.REFLECTIONS_PER_HOST, "REFLECTIONS_PER_HOST_MAX")
        self._version_1 = DescriptorPool()
        self._version_1.AddSerializedFile(_version_1_of_reflection().SerializeToString())

    async def ServerReflectionInfo(
        self,
        request_iterator: AsyncIterator[reflection_pb2.ServerReflectionRequest],
        context: Context,
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        """Answer the questions of a stream.

        Raises:
            LimitExceeded: when the host has as many streams as it may have.
        """
        with self._streams.taking(host_of(context.peer())):
            async for answer in super().ServerReflectionInfo(request_iterator, context):
                yield answer

    def _file_by_filename(
        self, request: reflection_pb2.ServerReflectionRequest, filename: str
    ) -> reflection_pb2.ServerReflectionResponse:
        return self._answer(request, lambda pool: pool.FindFileByName(filename))

    def _file_containing_symbol(
        self, request: reflection_pb2.ServerReflectionRequest, fully_qualified_name: str
    ) -> reflection_pb2.ServerReflectionResponse:
        return self._answer(request, lambda pool: _find_symbol(pool, fully_qualified_name))

    def _answer(
        self,
        request: reflection_pb2.ServerReflectionRequest,
        find: Callable[[DescriptorPool], FileDescriptor],
    ) -> reflection_pb2.ServerReflectionResponse:
        """Return a file and everything that it imports."""
        for pool in (Default(), self._version_1):
            try:
                file = find(pool)
            except KeyError:
                continue
            answer = reflection_pb2.FileDescriptorResponse(
                file_descriptor_proto=[self._encode(one) for one in _closure(file)]
            )
            return reflection_pb2.ServerReflectionResponse(
                file_descriptor_response=answer, original_request=request
            )
        error = reflection_pb2.ErrorResponse(error_code=_NOT_FOUND, error_message="not found")
        return reflection_pb2.ServerReflectionResponse(
            error_response=error, original_request=request
        )

    def _encode(self, file: FileDescriptor) -> bytes:
        commented = self._commented.get(file.name)
        return file.serialized_pb if commented is None else commented


def _find_symbol(pool: DescriptorPool, name: str) -> FileDescriptor:
    """Return the file of a service or type, or of a method, which the pool does not find by name.

    Raises:
        KeyError: there is no such symbol.
    """
    try:
        return pool.FindFileContainingSymbol(name)
    except KeyError:
        service, _, method = name.rpartition(".")
        return pool.FindServiceByName(service).methods_by_name[method].containing_service.file


def _closure(file: FileDescriptor) -> Iterator[FileDescriptor]:
    """Yield a file, then what it imports, directly or not, each once."""
    seen, queue = set[str](), [file]
    while queue:
        one = queue.pop(0)
        if one.name not in seen:
            seen.add(one.name)
            yield one
            queue += one.dependencies


def _version_1_of_reflection() -> FileDescriptorProto:
    """Return the descriptor of v1 of the reflection protocol."""
    file = FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
    file.ClearField("options")
    file.name = file.name.replace("v1alpha", "v1")
    file.package = file.package.replace("v1alpha", "v1")
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(".v1alpha.", ".v1.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(".v1alpha.", ".v1.")
            method.output_type = method.output_type.replace(".v1alpha.", ".v1.")
    return file
