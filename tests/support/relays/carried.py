"""A relay that speaks by hand: it carries agents that a test writes for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from support.core.served import LIMIT_S, hello_of

Entry = agent_pb2.RelayedRequest


def envelope(number: int, **message: Any) -> bytes:
    """Return an encoded message of an agent."""
    session = f"{number:032x}"
    made = agent_pb2.SessionRequest(session_id=session, connection=1, **message)
    return made.SerializeToString()


def opening(number: int, job_id: str = "a", **more: Any) -> Entry:
    """Return the beginning of the stream of an agent, whose number is that of the stream."""
    return carried(number, hello_of(job_id, number), **more)


def carried(number: int, hello: agent_pb2.Hello, **more: Any) -> Entry:
    """Return the same with another Hello."""
    made = agent_pb2.RelayedOpening(hello=envelope(number, hello=hello), **more)
    return Entry(stream=number, opening=made)


def beat(number: int, count: int = 1) -> Entry:
    """Return a heartbeat."""
    encoded = envelope(number, heartbeat=agent_pb2.Heartbeat(number=count))
    return Entry(stream=number, message=encoded)


class HandRelay:
    """A relay's stream."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Any = ()) -> None:
        stub: Any = agent_grpc.AgentServiceStub(channel)
        self.call: Any = stub.Relay(metadata=metadata)
        self._read: list[agent_pb2.RelayedResponse] = []

    async def begin(self) -> HandRelay:
        await self.call.write(agent_pb2.RelayRequest(protocol_version=1))
        async with asyncio.timeout(LIMIT_S):
            assert not (await self.call.read()).entries
        return self

    async def send(self, *entries: Entry) -> None:
        await self.call.write(agent_pb2.RelayRequest(entries=entries))

    async def wait(self, stream: int, kind: str) -> Any:
        """Return the next thing for an agent of this kind: a field of an envelope, or `end`."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for entry in self._read:
                    if entry.stream == stream and _is(entry, kind):
                        self._read.remove(entry)
                        return entry.end if kind == "end" else _message(entry)
                response = await self.call.read()
                assert response is not grpc.aio.EOF, "the stream has ended"
                self._read += response.entries

    async def outcome(self, stream: int) -> int:
        """Return the code with which the stream of an agent ends; 0: it is welcome."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for entry in self._read:
                    if entry.stream == stream and (_is(entry, "end") or _is(entry, "welcome")):
                        return int(entry.end.code)
                response = await self.call.read()
                assert response is not grpc.aio.EOF, "the stream has ended"
                self._read += response.entries

    async def ending(self) -> tuple[str, str]:
        """Return how the relay's stream ends."""
        async with asyncio.timeout(LIMIT_S):
            return (await self.call.code()).name, await self.call.details()

    async def join(self, numbers: Sequence[int], job_id: str = "a") -> None:
        """Let agents join in one message, and wait until all are welcome."""
        await self.send(*(opening(number, f"{job_id}{number}") for number in numbers))
        for number in numbers:
            await self.wait(number, "welcome")


def _is(entry: agent_pb2.RelayedResponse, kind: str) -> bool:
    if kind == "end":
        return entry.HasField("end")
    return entry.HasField("message") and _message(entry).WhichOneof("message") == kind


def _message(entry: agent_pb2.RelayedResponse) -> agent_pb2.SessionResponse:
    return agent_pb2.SessionResponse.FromString(entry.message)
