"""What a refused call leaves: nothing, wherever it is refused."""

from __future__ import annotations

import asyncio
import gc
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.server.access.usage.garbage import LEFT_BYTES_MAX, Garbage
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.wire.limits import LEAST_REQUEST_BYTES, request_bytes_max
from support.core.served import LIMIT_S, Served, hello_of, served

CALLS = 5
LONG_JOB = jobs_pb2.GetJobRequest(job_id="x" * 256).SerializeToString()
BAD_HELLO = agent_pb2.SessionRequest(hello=hello_of("bad", 1))
REFUSED = {
    "by a servicer": ("rallypoint.v1.JobService/GetJob", LONG_JOB),
    "of a stream of answers": ("rallypoint.v1.JobService/WatchJob", LONG_JOB),
    "by gRPC's servicer": ("grpc.health.v1.Health/Check", b"\x0a\x01x"),
    "without a token": ("rallypoint.v1.KeyValueService/WriteKeys", b"\x1a\x00"),
    "for its bytes": ("rallypoint.v1.JobService/GetJob", b"x" * (LEAST_REQUEST_BYTES + 1)),
    "as no message": ("rallypoint.v1.JobService/GetJob", b"\x0a\xff"),
    "of an agent": ("rallypoint.v1.AgentService/Session", BAD_HELLO.SerializeToString()),
}


async def refuse(server: Served, method: str, request: bytes) -> str:
    """Make a call that is refused; return the text of its status."""
    make: Any = server.channel.stream_stream(f"/{method}")
    call = make(timeout=LIMIT_S)
    await call.write(request)

    assert await call.code() is not grpc.StatusCode.OK
    return str(await call.details())


@contextmanager
def kept_garbage() -> Iterator[list[Any]]:
    """Return a list that has, in the end, what only the garbage collector would have found."""
    gc.collect()
    gc.disable()
    found: list[Any] = []
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("way", REFUSED)
async def test_a_refused_call_leaves_no_frame(way: str) -> None:
    """Its exceptions let go of their frames, so its request is gone without a collection."""
    async with served() as server:
        await refuse(server, *REFUSED[way])
        with kept_garbage() as found:
            for _ in range(CALLS):
                await refuse(server, *REFUSED[way])
            await asyncio.sleep(0)  # the server's task ends
        frames = [one.f_code.co_qualname for one in found if isinstance(one, types.FrameType)]

    assert [] == frames


@pytest.mark.parametrize(
    "method",
    [
        "rallypoint.v1.JobService/GetJob",
        "rallypoint.v1.JobService/WatchJob",
        "grpc.health.v1.Health/Check",
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ],
)
async def test_a_request_is_measured_before_it_is_decoded(method: str) -> None:
    """These bytes are no message; still it is their number that the refusal names."""
    async with served() as server:
        most = b"\xff" * LEAST_REQUEST_BYTES
        fits, too_long = (
            await refuse(server, method, most),
            await refuse(server, method, most + b"x"),
        )

    assert "message: cannot be decoded" == fits
    assert "message: has 65,537 bytes, more than 65,536" == too_long


async def test_the_largest_requests_of_the_contract_fit() -> None:
    """What the ranges of the fields allow is not refused for its bytes."""
    writes = [
        keys_pb2.KeyWrite(key=f"{number:0512}", put=keys_pb2.KeyWrite.Put(value=b"x" * 4096))
        for number in range(256)
    ]
    largest = keys_pb2.WriteKeysRequest(job_id="x" * 255, writes=writes, request_id="x" * 64)
    reads = keys_pb2.GetKeysRequest(job_id="x" * 255, keys=[one.key for one in writes] * 4)

    assert largest.ByteSize() <= request_bytes_max(keys_pb2.WriteKeysRequest.DESCRIPTOR)
    assert reads.ByteSize() <= request_bytes_max(keys_pb2.GetKeysRequest.DESCRIPTOR)


def test_what_calls_leave_is_collected_before_it_is_much() -> None:
    """Also what goes none of our ways: 16 MiB of requests or metadata are too much."""

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    garbage = Garbage()
    gc.disable()
    try:
        left = weakref.ref(Cycle())
        garbage.note_left(LEFT_BYTES_MAX - 1)
        assert left() is not None
        garbage.note_left(1)
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("beside", [b"", b"\x22\x00", b"\x7b\x7c", b"\x78\x01", b"\x7d1234"])
async def test_entries_are_counted_before_they_are_decoded(beside: bytes) -> None:
    """A write takes 25 times its bytes, and time: 256 are decoded, and no more, whatever else."""
    writes = [keys_pb2.KeyWrite(key=f"k{number}") for number in range(256)]
    most = keys_pb2.WriteKeysRequest(job_id="job", writes=writes).SerializeToString()
    path, empty = "rallypoint.v1.KeyValueService/WriteKeys", b"\x1a\x00"
    async with asyncio.timeout(LIMIT_S), served() as server:
        found = [
            await refuse(server, path, beside + most),
            await refuse(server, path, beside + empty * 600_000),
            await refuse(server, path, (beside or empty) * 200_000),
        ]

    few, *many = ("more than 320 fields" in text for text in found)
    assert (False, [True, True]) == (few, many)
