"""What a refused client learns: status, words, details. Over a real connection."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from rallypoint.server.contract import limits
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_pb2, node_service_pb2
from rallypoint.v1 import node_service_pb2_grpc as node_grpc
from rallypoint.wire.errors import Details, unpack_details
from support.core.served import Agent, hello_of, served


class End(Struct, frozen=True):
    """How a stream has ended."""

    code: str
    text: str
    details: Details


async def end_of(agent: Agent) -> End:
    """Read until a stream ends."""
    code, text = await agent.ending()
    return End(code.name, text, unpack_details(await agent.call.trailing_metadata()))


async def say(agent: Agent, **message: Any) -> None:
    """Send a message that need not be in order."""
    own: dict[str, Any] = {"session_id": agent.session_id, "connection": 1, "epoch": agent.epoch}
    await agent.call.write(agent_pb2.SessionRequest(**(own | message)))


JOB = "job"
HELLO = hello_of(JOB, 1)
HEARTBEAT = agent_pb2.Heartbeat(number=1)
READY = agent_pb2.Ready(master_port=20_000)


@pytest.mark.parametrize(
    ("message", "code", "reason", "field", "words"),
    [
        ({"hello": HELLO}, "INVALID_ARGUMENT", "INVALID_FIELD", "message", "second hello"),
        ({}, "INVALID_ARGUMENT", "INVALID_FIELD", "message", "is missing"),
        ({"ready": READY}, "INVALID_ARGUMENT", "INVALID_FIELD", "sequence", "1 or more for a rep"),
        ({"heartbeat": HEARTBEAT, "connection": 2}, "INVALID_ARGUMENT", "INVALID_FIELD",
         "connection", "must not change within a stream"),
        ({"heartbeat": HEARTBEAT, "session_id": "2" * 32}, "INVALID_ARGUMENT", "INVALID_FIELD",
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
    async with served() as server:
        agent = await server.join(JOB, 1)
        await say(agent, **message)
        end = await end_of(agent)

    assert (code, reason, field) == (end.code, end.details.reason, end.details.field)
    assert words in end.text


@pytest.mark.parametrize(
    "message", [{"heartbeat": HEARTBEAT}, {"ready": READY, "sequence": 1}], ids=["beat", "report"]
)
async def test_higher_epoch_is_stale_here(message: dict[str, Any]) -> None:
    """The agent learns both epochs, opens a new stream, and the coordinator catches up."""
    async with served() as server:
        agent = await server.join(JOB, 1)
        before = agent.epoch
        agent.epoch += 10
        await say(agent, **message)
        end = await end_of(agent)
        again = agent.again(server)
        await again.hello()
        await again.read()

    assert ("ABORTED", "NEWER_EPOCH", "epoch") == (
        end.code,
        end.details.reason,
        end.details.field,
    )
    assert end.details.own == details_pb2.StaleSender(
        kind=details_pb2.STALE_KIND_EPOCH, expected=before, actual=before + 10
    )
    assert again.epoch == before + 11


async def test_older_connection_is_called_so() -> None:
    """Both the one that was replaced and one that comes late learn the newer number."""
    async with served() as server:
        first = await server.join(JOB, 1)
        newer, late = first.again(server), first.again(server)
        newer.connection = 3
        await newer.hello()
        await newer.read()
        await late.hello()
        ends = [await end_of(one) for one in (first, late)]

    for end, actual in zip(ends, (1, 2), strict=True):
        assert ("ABORTED", "STALE_CONNECTION") == (end.code, end.details.reason)
        assert end.details.own == details_pb2.StaleSender(
            kind=details_pb2.STALE_KIND_CONNECTION, expected=3, actual=actual
        )


async def test_silent_stream_misses_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It broke no rule of the contract, so its agent may try again."""
    monkeypatch.setattr(limits, "HELLO_S_MAX", 0.05)
    async with served() as server:
        silent = server.agent(JOB, 1)
        await silent.call.wait_for_connection()
        end = await end_of(silent)

    assert ("DEADLINE_EXCEEDED", "NO_HELLO", "message") == (
        end.code,
        end.details.reason,
        end.details.field,
    )


async def test_exit_code_in_both_lists_is_refused() -> None:
    """It cannot mean both."""
    spec = job_pb2.JobSpec(no_retry_exit_codes=[40], no_requeue_exit_codes=[41, 40])
    async with served() as server:
        agent = server.agent(JOB, 1)
        await agent.hello(spec=spec)
        end = await end_of(agent)

    assert ("INVALID_ARGUMENT", "hello.spec.no_requeue_exit_codes") == (
        end.code,
        end.details.field,
    )
    assert "40 is in no_retry_exit_codes too" in end.text


async def test_cordon_of_an_unknown_name_says_so() -> None:
    """It waits for a node of that name, which may be misspelled."""
    async with served() as server:
        await server.join(JOB, 1)
        nodes: Any = node_grpc.NodeServiceStub(server.channel)
        cordon = node_service_pb2.CordonNodeRequest
        known = await nodes.CordonNode(cordon(job_id=JOB, node_name="n1"))
        unknown = await nodes.CordonNode(cordon(job_id=JOB, node_name="n11"))

    assert (True, False) == (known.connected, unknown.connected)
    assert known.health.cordoned and unknown.health.cordoned
