"""What a refused client learns: status, words, details. Over a real connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status

from rallypoint.server.contract import limits
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.serve import Settings, serving
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import node_service_pb2
from rallypoint.v1 import node_service_pb2_grpc as node_grpc
from rallypoint.wire.channel import client_options
from rallypoint.wire.errors import DETAILS_KEY, DOMAIN, unpack_detail
from support.contract.samples import JOB, ready_hello, session_id


class Refused(Exception):
    """The end of a call."""

    def __init__(self, code: Any, text: str, metadata: Any) -> None:
        super().__init__(text)
        self.code: grpc.StatusCode = code
        self.text = text
        self.detail = unpack_detail(tuple(metadata or ()))
        self.reason, self.field = "", ""
        for key, value in metadata or ():
            if key == DETAILS_KEY:
                for packed in Status.FromString(value).details:
                    self._unpack(packed)

    def _unpack(self, packed: Any) -> None:
        info, bad = ErrorInfo(), BadRequest()
        if packed.Unpack(info):
            assert info.domain == DOMAIN
            self.reason = info.reason
        if packed.Unpack(bad):
            self.field = bad.field_violations[0].field
            assert bad.field_violations[0].description


class Client:
    """Talks to a coordinator in this process."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.epoch = 0

    async def open(self, number: int, connection: int = 1) -> Any:
        """Open a session that is welcomed."""
        call: Any = agent_grpc.AgentServiceStub(self.channel).Session()
        await self.say(call, number, connection, hello=ready_hello(number))
        answer = await call.read()
        assert answer.HasField("welcome"), await end_of(call)
        self.epoch = answer.epoch
        return call

    async def say(
        self, call: Any, number: int, connection: int = 1, sequence: int = 0, **message: Any
    ) -> None:
        message.setdefault("epoch", self.epoch)
        await call.write(
            agent_pb2.SessionRequest(
                session_id=session_id(number), connection=connection, sequence=sequence, **message
            )
        )


async def end_of(call: Any) -> Refused:
    """Return how a stream ended."""
    code, text = await call.code(), await call.details()
    return Refused(code, text, await call.trailing_metadata())


@asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    settings = Settings("127.0.0.1", 0, Timing(), standalone=True)
    async with serving(settings) as running:
        target = f"127.0.0.1:{running.port}"
        async with grpc.aio.insecure_channel(target, options=client_options()) as channel:
            yield Client(channel)


Sends = Callable[[Client, Any], Awaitable[None]]
HEARTBEAT = agent_pb2.Heartbeat(number=1)
READY = agent_pb2.Ready(master_port=20_000)


@pytest.mark.parametrize(
    ("message", "code", "reason", "field", "words"),
    [
        ({"hello": ready_hello(1)}, "INVALID_ARGUMENT", "INVALID_FIELD", "message", "second hello"),
        ({}, "INVALID_ARGUMENT", "INVALID_FIELD", "message", "is missing"),
        ({"ready": READY}, "INVALID_ARGUMENT", "INVALID_FIELD", "sequence", "1 or more for a rep"),
        ({"heartbeat": HEARTBEAT, "connection": 2}, "INVALID_ARGUMENT", "INVALID_FIELD",
         "connection", "must not change within a stream"),
        ({"heartbeat": HEARTBEAT, "number": 2}, "INVALID_ARGUMENT", "INVALID_FIELD",
         "session_id", "must not change within a stream"),
        ({"ready": READY, "sequence": 5}, "ABORTED", "SEQUENCE_GAP", "sequence",
         "expected report 1, got report 5"),
        ({"ready": READY, "sequence": 1, "epoch": 1}, "ABORTED", "STALE_EPOCH", "epoch", "epoch 1"),
    ],
)  # fmt: skip
async def test_end_of_a_session_is_explained(
    message: dict[str, Any], code: str, reason: str, field: str, words: str
) -> None:
    """The status says what is wrong, a constant says why, and a path says where."""
    async with connected() as client:
        call = await client.open(1)
        await client.say(call, message.pop("number", 1), **message)
        end = await end_of(call)

    assert (code, reason, field) == (end.code.name, end.reason, end.field)
    assert words in end.text


@pytest.mark.parametrize(
    "message", [{"heartbeat": HEARTBEAT}, {"ready": READY, "sequence": 1}], ids=["beat", "report"]
)
async def test_higher_epoch_is_stale_here(message: dict[str, Any]) -> None:
    """The agent learns both epochs, opens a new stream, and the coordinator catches up."""
    async with connected() as client:
        call = await client.open(1)
        before = client.epoch
        await client.say(call, 1, epoch=before + 10, **message)
        end = await end_of(call)
        client.epoch = before + 10
        await client.open(1, connection=2)

        assert ("ABORTED", "NEWER_EPOCH", "epoch") == (end.code.name, end.reason, end.field)
        assert end.detail == details_pb2.StaleSender(
            kind=details_pb2.STALE_KIND_EPOCH, expected=before, actual=before + 10
        )
        assert client.epoch == before + 11


async def test_older_connection_is_called_so() -> None:
    """Both the one that was replaced and one that comes late learn the newer number."""
    async with connected() as client:
        first = await client.open(1, connection=2)
        await client.open(1, connection=3)
        late: Any = agent_grpc.AgentServiceStub(client.channel).Session()
        await client.say(late, 1, connection=1, hello=ready_hello(1))

        for call, actual in ((first, 2), (late, 1)):
            end = await end_of(call)
            assert ("ABORTED", "STALE_CONNECTION") == (end.code.name, end.reason)
            assert end.detail == details_pb2.StaleSender(
                kind=details_pb2.STALE_KIND_CONNECTION, expected=3, actual=actual
            )


async def test_silent_stream_misses_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It broke no rule of the contract, so its agent may try again."""
    monkeypatch.setattr(limits, "HELLO_S_MAX", 0.05)
    async with connected() as client:
        call: Any = agent_grpc.AgentServiceStub(client.channel).Session()
        await call.wait_for_connection()
        end = await end_of(call)

    assert ("DEADLINE_EXCEEDED", "NO_HELLO", "message") == (end.code.name, end.reason, end.field)


async def test_exit_code_in_both_lists_is_refused() -> None:
    """It cannot mean both."""
    async with connected() as client:
        call: Any = agent_grpc.AgentServiceStub(client.channel).Session()
        hello = ready_hello(1)
        hello.spec.no_requeue_exit_codes.append(40)
        await client.say(call, 1, hello=hello)
        end = await end_of(call)

    assert ("INVALID_ARGUMENT", "hello.spec.no_requeue_exit_codes") == (end.code.name, end.field)
    assert "40 is in no_retry_exit_codes too" in end.text


async def test_cordon_of_an_unknown_name_says_so() -> None:
    """It waits for a node of that name, which may be misspelled."""
    async with connected() as client:
        session = await client.open(1)
        nodes: Any = node_grpc.NodeServiceStub(client.channel)
        cordon = node_service_pb2.CordonNodeRequest
        known = await nodes.CordonNode(cordon(job_id=JOB, node_name="node1"))
        unknown = await nodes.CordonNode(cordon(job_id=JOB, node_name="noed1"))
        session.cancel()

    assert (True, False) == (known.connected, unknown.connected)
    assert known.health.cordoned and unknown.health.cordoned
