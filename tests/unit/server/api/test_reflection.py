"""Reflection: what tools learn of the contract from a running coordinator."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2

from support.core.served import LIMIT_S, Served, served

VERSIONS = ("v1", "v1alpha")
EACH_VERSION = pytest.mark.parametrize("version", VERSIONS)
START = """\
import asyncio, sys
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.serve import Settings, serving

async def main():
    async with serving(Settings("127.0.0.1", 0, Timing(), standalone=True)):
        pass

asyncio.run(main())
ours = "rallypoint.server.api.about.reflection"
slow = {"grpc_reflection.v1alpha", "google.rpc.error_details_pb2", ours}
print(sorted(slow & set(sys.modules)))
"""


async def ask(
    server: Served, version: str, request: reflection_pb2.ServerReflectionRequest
) -> reflection_pb2.ServerReflectionResponse:
    call = server.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(iter([request]), timeout=LIMIT_S)
    async for answer in call:
        assert isinstance(answer, reflection_pb2.ServerReflectionResponse)
        return answer
    raise EOFError


async def services_of(server: Served, version: str) -> list[str]:
    answer = await ask(server, version, reflection_pb2.ServerReflectionRequest(list_services=""))
    return [service.name for service in answer.list_services_response.service]


async def files_with(server: Served, version: str, symbol: str) -> dict[str, FileDescriptorProto]:
    """Return the file that declares a symbol, and all that it imports, by name."""
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    answer = await ask(server, version, request)
    found = [
        FileDescriptorProto.FromString(one)
        for one in answer.file_descriptor_response.file_descriptor_proto
    ]
    return {file.name: file for file in found}


def add_to(
    pool: DescriptorPool, files: dict[str, FileDescriptorProto], name: str, seen: set[str]
) -> None:
    """Add a file after what it imports; a missing import raises KeyError."""
    if name not in seen:
        seen.add(name)
        for imported in files[name].dependency:
            add_to(pool, files, imported, seen)
        pool.AddSerializedFile(files[name].SerializeToString())


@EACH_VERSION
async def test_every_service_can_be_described(version: str) -> None:
    """From its answer alone, with everything that it imports from google; reflection included."""
    async with served() as server:
        names = await services_of(server, version)
        files: dict[str, FileDescriptorProto] = {}
        for name in (*names, "rallypoint.v1.BarrierBroken", "google.rpc.RetryInfo"):
            files |= await files_with(server, version, name)
    pool, seen = DescriptorPool(), set[str]()
    for name in files:
        add_to(pool, files, name, seen)

    assert {f"grpc.reflection.{one}.ServerReflection" for one in VERSIONS} <= set(names)
    assert "rallypoint.v1.CoordinatorService" in names
    for name in names:
        assert pool.FindServiceByName(name).methods
    assert pool.FindMessageTypeByName("google.rpc.ErrorInfo").fields_by_name["reason"]


@EACH_VERSION
async def test_comments_arrive(version: str) -> None:
    """Those of methods and fields, as the .proto files have them."""
    async with served() as server:
        files = await files_with(server, version, "rallypoint.v1.JobService")
    comments = dict(comments_of(files["rallypoint/v1/job_service.proto"]))
    comments |= dict(comments_of(files["rallypoint/v1/job.proto"]))

    assert comments["JobService.GetJob"].startswith("Returns one job. NOT_FOUND with UnknownJob")
    assert comments["GetJobRequest.job_id"] == "Name of the job. Empty is refused."
    assert comments["JobPhase.JOB_PHASE_RUNNING"]


async def test_everything_in_the_contract_has_a_comment() -> None:
    """Every service, method, message, field, enum and value."""
    async with served() as server:
        files: dict[str, FileDescriptorProto] = {}
        for name in await services_of(server, "v1"):
            files |= await files_with(server, "v1", name)
        files |= await files_with(server, "v1", "rallypoint.v1.BarrierBroken")
    ours = [file for file in files.values() if file.package == "rallypoint.v1"]

    assert len(ours) > 10
    assert [name for file in ours for name, text in comments_of(file) if not text] == []


def comments_of(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    """Yield the name and the comment of everything in a file."""
    at = {
        tuple(place.path): " ".join(place.leading_comments.split())
        for place in file.source_code_info.location
    }
    for i, service in enumerate(file.service):
        yield service.name, at.get((6, i), "")
        for j, method in enumerate(service.method):
            yield f"{service.name}.{method.name}", at.get((6, i, 2, j), "")
    for i, message in enumerate(file.message_type):
        yield from _of_message(message, (4, i), at)
    for i, enum in enumerate(file.enum_type):
        yield from _of_enum(enum, (5, i), at)


def _of_message(
    message: DescriptorProto, path: tuple[int, ...], at: dict[tuple[int, ...], str]
) -> Iterator[tuple[str, str]]:
    if message.options.map_entry:
        return
    yield message.name, at.get(path, "")
    for i, field in enumerate(message.field):
        yield f"{message.name}.{field.name}", at.get((*path, 2, i), "")
    for i, nested in enumerate(message.nested_type):
        yield from _of_message(nested, (*path, 3, i), at)
    for i, enum in enumerate(message.enum_type):
        yield from _of_enum(enum, (*path, 4, i), at)


def _of_enum(
    enum: EnumDescriptorProto, path: tuple[int, ...], at: dict[tuple[int, ...], str]
) -> Iterator[tuple[str, str]]:
    yield enum.name, at.get(path, "")
    for i, value in enumerate(enum.value):
        yield f"{enum.name}.{value.name}", at.get((*path, 2, i), "")


async def test_unknown_name_is_not_found() -> None:
    """As an answer of the protocol, and not as the end of the call."""
    async with served() as server:
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Thing")
        by_symbol = await ask(server, "v1", request)
        request = reflection_pb2.ServerReflectionRequest(file_by_filename="no/such.proto")
        by_name = await ask(server, "v1", request)

    assert [5, 5] == [one.error_response.error_code for one in (by_symbol, by_name)]


def test_start_does_not_wait_for_reflection() -> None:
    """Nothing of it is loaded before the first question."""
    done = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, timeout=60, check=False
    )

    assert "[]" == done.stdout.splitlines()[-1], done.stderr


@EACH_VERSION
async def test_methods_are_found(version: str) -> None:
    """grpcurl asks for the file of a method to describe it; one that is not there is not found."""
    async with served() as server:
        found = await files_with(server, version, "rallypoint.v1.JobService.CancelJob")
        request = reflection_pb2.ServerReflectionRequest(
            file_containing_symbol="rallypoint.v1.JobService.CancelAll"
        )
        missing = await ask(server, version, request)

    assert next(iter(found)) == "rallypoint/v1/job_service.proto"
    assert missing.WhichOneof("message_response") == "error_response"
