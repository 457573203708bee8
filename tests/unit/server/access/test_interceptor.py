"""What an unexpected exception of one call becomes, for its peer, the log and everyone else."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stub

from rallypoint.server.access.interceptor import has_ended
from rallypoint.server.agents import connections, envelopes
from rallypoint.server.api.jobs import picture
from rallypoint.server.api.jobs import service as job_service
from rallypoint.server.contract.node import show_session
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from support.core.served import Served, hello_of, served

GET = "/rallypoint.v1.JobService/GetJob"
WATCH = "/rallypoint.v1.JobService/WatchJob"
SESSION = "/rallypoint.v1.AgentService/Session"
GARBAGE = b"\x0a\xff\xff\xff"


class Planted(Exception):
    """The bug. Its text must reach no peer."""


def plant(monkeypatch: pytest.MonkeyPatch, where: object, name: str, strikes: Any) -> None:
    """Let a function fail when `strikes` holds for its arguments."""
    genuine = getattr(where, name)

    def planted(*args: Any, **kwargs: Any) -> Any:
        if strikes(*args, **kwargs):
            raise Planted("private text")
        return genuine(*args, **kwargs)

    monkeypatch.setattr(where, name, planted)


def check_incident(lines: list[Any], code: grpc.StatusCode, details: str) -> Any:
    """Check that the peer got only the id of the one traceback in the log; return its line."""
    (line,) = [line for line in lines if line.get("exc_info")]

    assert grpc.StatusCode.INTERNAL is code
    assert re.fullmatch("[0-9a-f]{8}", line["incident"])
    assert line["incident"] in details
    assert "private text" not in details and "Planted" not in details
    return line


async def call(server: Served, method: str, raw: bytes) -> tuple[grpc.StatusCode, str]:
    """Send these bytes as a unary request; return the status."""
    try:
        unary: Any = server.channel.unary_unary(method)
        await unary(raw)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def test_bug_in_a_unary_call(monkeypatch: pytest.MonkeyPatch, lines: list[Any]) -> None:
    """The line in the log names the call, its peer and its job."""
    plant(monkeypatch, job_service, "take_picture", lambda *_, **__: True)
    async with served() as server:
        good = await server.join("good", 1)
        request = service_pb2.GetJobRequest(job_id="good")
        line = check_incident(lines, *await call(server, GET, request.SerializeToString()))

        assert ("GetJob", "good") == (line["method"], line["job_id"])
        assert line["peer"].startswith("ipv4:127.0.0.1:")
        await good.check_alive()


async def test_bug_in_a_streaming_call(monkeypatch: pytest.MonkeyPatch, lines: list[Any]) -> None:
    """The stream ends with the same status."""
    plant(monkeypatch, job_service, "take_picture", lambda *_, **__: True)
    async with served() as server:
        good = await server.join("good", 1)
        request = service_pb2.WatchJobRequest(job_id="good")
        watch = service_grpc.JobServiceStub(server.channel).WatchJob(request)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch.read()
        line = check_incident(lines, caught.value.code(), caught.value.details() or "")

        assert ("WatchJob", "good") == (line["method"], line["job_id"])
        await good.check_alive()


async def test_answer_that_cannot_be_encoded(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    """A number that fits no field is a bug like any other."""
    genuine = picture.take_picture

    def overflow(*args: Any) -> picture.JobPicture:
        picture = genuine(*args)
        picture.message.run = 1 << 64
        return picture

    monkeypatch.setattr(job_service, "take_picture", overflow)
    async with served() as server:
        await server.join("good", 1)
        request = service_pb2.GetJobRequest(job_id="good")

        check_incident(lines, *await call(server, GET, request.SerializeToString()))


@pytest.mark.parametrize("name", ["to_report", "desired_message"])
async def test_bug_in_a_session(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any], name: str
) -> None:
    """Only that agent's stream ends; the line in the log names job and session."""
    bad_id = f"{2:032x}"
    async with served() as server:
        good = await server.join("good", 1)
        if name == "to_report":
            bad = await server.join("bad", 2)
            plant(monkeypatch, connections, name, lambda m, *_: m.session_id == bad_id)
            await bad.report(succeeded=agent_pb2.Succeeded(round=1))
        else:
            plant(monkeypatch, envelopes, name, lambda _: True)
            bad = server.agent("bad", 2)
            await bad.hello()
        line = check_incident(lines, *await bad.ending())

        assert ("Session", "bad", show_session(bad_id)) == (
            line["method"],
            line["job_id"],
            line["session_id"],
        )
        await good.check_alive()


@pytest.mark.parametrize("method", [GET, WATCH, SESSION])
async def test_bytes_that_are_no_message(method: str, lines: list[Any]) -> None:
    """The sender learns what is wrong, and the log gets one line without a traceback."""
    async with served() as server:
        good = await server.join("good", 1)
        if method == SESSION:
            stream: Any = server.channel.stream_stream(method)()
            await stream.write(GARBAGE)
            status = await stream.code(), await stream.details()
        else:
            status = await call(server, method, GARBAGE)
        await good.check_alive()

    assert (grpc.StatusCode.INVALID_ARGUMENT, "message: cannot be decoded") == status
    (line,) = [line for line in lines if line["log_level"] in ("warning", "error")]
    assert ("message_rejected", method.rpartition("/")[2]) == (line["event"], line["method"])
    assert ("message", "cannot be decoded") == (line["path"], line["problem"])


async def test_broken_bytes_within_a_session(lines: list[Any]) -> None:
    """They end that session only."""
    async with served() as server:
        good = await server.join("good", 1)
        stream: Any = server.channel.stream_stream(SESSION)()
        hello = agent_pb2.SessionRequest(session_id=f"{2:032x}", connection=1)
        hello.hello.CopyFrom(hello_of("bad", 2))
        await stream.write(hello.SerializeToString())
        await stream.read()
        await stream.write(GARBAGE)

        assert grpc.StatusCode.INVALID_ARGUMENT is await stream.code()
        assert [] == [line for line in lines if line.get("exc_info")]
        await good.check_alive()


async def test_refusal_is_no_bug(lines: list[Any]) -> None:
    """An abort and a cancelled call pass without a line about an error."""
    async with served() as server:
        good = await server.join("good", 1)
        request = service_pb2.GetJobRequest(job_id="other").SerializeToString()
        code, _ = await call(server, GET, request)
        watch = service_grpc.JobServiceStub(server.channel).WatchJob(
            service_pb2.WatchJobRequest(job_id="good")
        )
        await watch.read()
        watch.cancel()
        gone = await server.join("gone", 3)
        gone.call.cancel()
        await good.check_alive()

    assert grpc.StatusCode.NOT_FOUND is code
    assert [] == [line for line in lines if line["log_level"] in ("warning", "error")]


async def test_refused_hello_is_logged_with_its_context(lines: list[Any]) -> None:
    """With the peer, the job and the session."""
    async with served() as server:
        bad = server.agent("bad", 2)
        await bad.hello(local_world_size=5_000)
        code, _ = await bad.ending()

    assert grpc.StatusCode.INVALID_ARGUMENT is code
    (line,) = [line for line in lines if line["event"] == "hello_rejected"]
    shown = show_session(f"{2:032x}")
    assert ("bad", shown, "Session") == (line["job_id"], line["session_id"], line["method"])
    assert "127.0.0.1" in line["peer"]


async def test_compressed_request_is_refused() -> None:
    """Before it is inflated; the same request without compression is answered."""
    async with served() as server:
        await server.join("good", 1)
        request = service_pb2.GetJobRequest(job_id="good")
        stub = service_grpc.JobServiceStub(server.channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetJob(request, compression=grpc.Compression.Gzip)
        answer = await stub.GetJob(request)

    assert grpc.StatusCode.UNIMPLEMENTED is caught.value.code()
    assert "good" == answer.job.job_id


async def test_log_has_the_beginning_of_a_name_only(lines: list[Any]) -> None:
    """A call that is refused may name a job of millions of characters."""
    async with served() as server:
        bad = server.agent("x" * 100_000, 2)
        await bad.hello()
        await bad.ending()
        request = service_pb2.GetJobRequest(job_id="x" * 50_000).SerializeToString()
        await call(server, GET, request)

    assert [] == [line for line in lines if len(repr(line)) > 2_000]
    assert "hello_rejected" in [line["event"] for line in lines]


GONE = cygrpc.ExecuteBatchError("a write has failed")
MISUSED = grpc.aio.UsageError("RPC already finished.")


@pytest.mark.parametrize(
    ("causes", "is_done", "expected"),
    [
        ([GONE], False, True),
        ([GONE, MISUSED], False, True),
        ([MISUSED], True, True),
        ([MISUSED], False, False),
        ([GONE, Planted()], False, False),
        ([Planted()], True, False),
    ],
)
def test_peer_that_goes_is_no_bug(causes: list[Exception], is_done: bool, expected: bool) -> None:
    """A write to it may fail before gRPC cancels the call, which is not `done` then."""
    context: Any = SimpleNamespace(done=lambda: is_done)

    assert expected is has_ended(causes, context)
