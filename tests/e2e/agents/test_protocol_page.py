"""The messages in docs/protocol.md are those that an agent and a coordinator exchange."""

from __future__ import annotations

import json
import queue
import secrets
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf import json_format

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from support.docs.pages import REPOSITORY, find_blocks
from support.processes.feed import LIMIT_S
from support.processes.world import World

PAGE = REPOSITORY / "docs" / "protocol.md"
OF_COORDINATOR = agent_pb2.SessionResponse.DESCRIPTOR.oneofs_by_name["message"].fields
DRAWN = ("epoch", "coordinatorId", "resumeToken", "workerToken", "jobId")
"""Values that differ between two coordinators or two tests."""


def messages() -> list[dict[str, Any]]:
    """Return the messages of the page, in order."""
    return [json.loads(block.text) for block in find_blocks(PAGE) if block.language == "json"]


def is_of_coordinator(message: dict[str, Any]) -> bool:
    return any(field.json_name in message for field in OF_COORDINATOR)


class Stream:
    """A connection that an agent has opened."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._to_send: queue.Queue[agent_pb2.SessionRequest | None] = queue.Queue()
        self._call = agent_grpc.AgentServiceStub(channel).Session(self._requests(), timeout=LIMIT_S)

    def _requests(self) -> Iterator[agent_pb2.SessionRequest]:
        return iter(self._to_send.get, None)

    def send(self, message: dict[str, Any]) -> None:
        self._to_send.put(json_format.ParseDict(message, agent_pb2.SessionRequest()))

    def read_until(self, kind: str) -> dict[str, Any]:
        """Return the next message of a kind, as JSON."""
        for answer in self._call:
            if answer.WhichOneof("message") == kind:
                found: dict[str, Any] = json_format.MessageToDict(answer)
                return found
        raise AssertionError(f"the stream ended without {kind}")

    def cut(self) -> None:
        self._call.cancel()
        self._to_send.put(None)

    def is_ok(self) -> bool:
        """Read the rest; return whether the coordinator ends the stream with OK."""
        rest = list(self._call)
        self._to_send.put(None)
        return rest == [] and self._call.code() is grpc.StatusCode.OK


def find_drawn(message: Any) -> Iterator[tuple[str, str]]:
    """Yield every value of a message that was drawn, with its name."""
    if isinstance(message, dict):
        for name, value in message.items():
            if name in DRAWN:
                yield name, value
            else:
                yield from find_drawn(value)
    elif isinstance(message, list):
        for one in message:
            yield from find_drawn(one)


def replace(message: Any, actual: dict[str, str]) -> Any:
    """Return a message of the page with the values that were drawn this time."""
    if isinstance(message, list):
        return [replace(one, actual) for one in message]
    if not isinstance(message, dict):
        return message
    return {
        name: actual.get(name, value) if name in DRAWN else replace(value, actual)
        for name, value in message.items()
    }


def cut_to(shape: Any, message: Any) -> Any:
    """Return the part of a message that another one has."""
    if not isinstance(shape, dict) or not isinstance(message, dict):
        return message
    return {name: cut_to(shape[name], message[name]) for name in shape if name in message}


def await_window(world: World, hello: dict[str, Any]) -> None:
    """Wait until the coordinator forms rounds: when it has just started, it listens first."""
    stream = Stream(world.jobs.channel)
    other = {**hello["hello"], "jobId": f"{world.job_id}-before"}
    stream.send({**hello, "sessionId": secrets.token_hex(16), "hello": other})
    desired = stream.read_until("welcome")["welcome"]["desired"]
    if "run" not in desired:
        assert "run" in stream.read_until("desired")["desired"]
    stream.cut()


def test_session_runs_as_printed(world: World) -> None:
    """The coordinator answers the agent's messages of the page with its own messages there."""
    await_window(world, messages()[0])
    actual = {"jobId": world.job_id}
    stream = Stream(world.jobs.channel)
    connection = "1"
    for message in messages():
        if not is_of_coordinator(message):
            if message["connection"] != connection:
                stream.cut()
                stream = Stream(world.jobs.channel)
                connection = message["connection"]
            stream.send(replace(message, actual))
            continue
        (kind,) = (field.name for field in OF_COORDINATOR if field.json_name in message)
        answer = stream.read_until(kind)
        actual.update(find_drawn(answer))

        assert cut_to(message, answer) == replace(message, actual)

    assert stream.is_ok()
