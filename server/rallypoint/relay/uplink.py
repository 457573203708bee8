"""The stream to one coordinator: all agents of the relay whose jobs it owns share it.

What arrives from agents while a message is being sent goes into the next one. Both sides say
something at least once a second, so each notices soon when the other stands still.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from rallypoint.base.log import get_logger
from rallypoint.relay.agent import OK, Agent, End, unavailable
from rallypoint.relay.outgoing import Outgoing
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.channel import client_options
from rallypoint.wire.connecting import Unreachable, connect, find_way
from rallypoint.wire.credentials import Credentials

log = get_logger()

RELAY = "/rallypoint.v1.AgentService/Relay"
PROTOCOL_VERSION = 1
ANSWER_S_MAX = 1.0
"""Longest wait for the first answer."""
BEAT_S = 1.0
"""Longest time without a message to the coordinator."""
SILENT_BEATS = 4
"""Signs of life in a row without an answer after which the coordinator counts as gone."""
WRITE_S_MAX = 5.0
"""Longest write: the coordinator does not read."""
PACE_S = 0.002
"""Pause after a message, in which more agents of the rack say the same."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Uplink:
    """One stream to one coordinator. When it has ended, another one replaces it."""

    def __init__(self, target: str, credentials: Credentials) -> None:
        """Begin without a connection; `run` makes it."""
        self.target = target
        self.ready = asyncio.Event()
        """Set when agents are served, or never will be."""
        self.problem = ""
        """Why no agents are served any more."""
        self.gone = asyncio.Event()
        """Set when the stream has ended."""
        self.has_ended = False
        self._credentials = credentials
        self._agents: dict[int, Agent] = {}
        """By the numbers of their streams."""
        self._last = 0
        self._outgoing = Outgoing()
        self._wake = asyncio.Event()
        self._unanswered = 0
        """Signs of life in a row."""

    def __len__(self) -> int:
        """Return the number of agents."""
        return len(self._agents)

    @property
    def is_full(self) -> bool:
        """Return whether it takes no other agents, because too much waits to be sent."""
        return self._outgoing.is_full

    # --- What agents do ---------------------------------------------------------------------------

    def open(self, agent: Agent) -> int:
        """Open the stream of an agent; return its number."""
        self._last += 1
        self._agents[self._last] = agent
        self._add(agent_pb2.RelayedRequest(stream=self._last, opening=agent.opening))
        return self._last

    async def send(self, number: int, message: bytes) -> None:
        """Send a message of an agent; wait while there is no room."""
        while (agent := self._agents.get(number)) and not self._outgoing.has_room(number):
            agent.room.clear()
            await agent.room.wait()
        if agent is not None:
            self._add(agent_pb2.RelayedRequest(stream=number, message=message))

    def done_sending(self, number: int) -> None:
        """Note that an agent sends nothing more, and still reads."""
        if number in self._agents:
            closing = agent_pb2.RelayedClosing(still_reads=True)
            self._add(agent_pb2.RelayedRequest(stream=number, closing=closing))

    def close(self, number: int) -> None:
        """Close the stream of an agent that is gone."""
        if self._agents.pop(number, None) is not None:
            closing = agent_pb2.RelayedClosing()
            self._add(agent_pb2.RelayedRequest(stream=number, closing=closing))

    def _add(self, entry: agent_pb2.RelayedRequest) -> None:
        if not self.has_ended:
            self._outgoing.add(entry)
            self._wake.set()

    # --- The stream -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry agents until the stream ends; then end those of the agents."""
        problem = "the relay ends"
        try:
            options = client_options()
            at = await find_way(self.target)
            async with self._credentials.open_aio_channel(at, options) as channel:
                await connect(channel, self.target, self._credentials.access)
                call: Any = channel.stream_stream(
                    RELAY,
                    request_serializer=agent_pb2.RelayRequest.SerializeToString,
                    response_deserializer=agent_pb2.RelayResponse.FromString,
                )(metadata=self._credentials.metadata())
                try:
                    await self._converse(call)
                finally:
                    call.cancel()
            problem = "the coordinator has closed the stream"
        except Unreachable as unreachable:
            problem = str(unreachable)
        finally:
            self._end(problem)

    def _end(self, problem: str) -> None:
        self.has_ended, self.problem = True, problem
        self.ready.set()
        self.gone.set()
        agents, self._agents = tuple(self._agents.values()), {}
        for agent in agents:
            agent.finish(unavailable(f"the relay has lost the coordinator: {problem}"))

    async def _converse(self, call: Any) -> None:
        """Read and write until the stream ends.

        Raises:
            Unreachable: always, unless the coordinator has ended the stream in order.
        """
        try:
            await self._begin(call)
            self.ready.set()
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._write(call))
                await self._read(call)
                writer.cancel()
        except (grpc.aio.AioRpcError, *_STREAM_ERRORS) as error:
            raise _explain(error) from None
        except ExceptionGroup as group:
            known, unknown = group.split((grpc.aio.AioRpcError, *_STREAM_ERRORS))
            if unknown is not None or known is None:
                raise
            status = known.subgroup(grpc.aio.AioRpcError)  # prefer it: it has the reason
            raise _explain(_first(status or known)) from None

    async def _begin(self, call: Any) -> None:
        """Let the coordinator know that this is a relay, and wait until it has answered."""
        async with asyncio.timeout(ANSWER_S_MAX):
            await call.write(agent_pb2.RelayRequest(protocol_version=PROTOCOL_VERSION))
            if await call.read() is grpc.aio.EOF:
                raise Unreachable("the coordinator has closed the stream")

    async def _read(self, call: Any) -> None:
        while (response := await call.read()) is not grpc.aio.EOF:
            self._unanswered = 0
            for entry in response.entries:
                agent = self._agents.get(entry.stream)
                if agent is None:
                    continue
                if entry.HasField("message"):
                    agent.receive(entry.message)
                elif entry.HasField("end"):
                    del self._agents[entry.stream]
                    agent.finish(_to_end(entry.end))

    async def _write(self, call: Any) -> None:
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + BEAT_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(beat_at):
                    await self._wake.wait()
            self._wake.clear()
            if self._outgoing:
                await self._write_batch(call)
            if loop.time() >= beat_at:
                beat_at = loop.time() + BEAT_S
                await self._write_beat(call)
            await asyncio.sleep(PACE_S)

    async def _write_batch(self, call: Any) -> None:
        request = self._outgoing.take()
        if self._outgoing:
            self._wake.set()
        async with asyncio.timeout(WRITE_S_MAX):
            await call.write(request)
        for entry in request.entries:
            agent = self._agents.get(entry.stream)
            if agent is not None:
                agent.room.set()

    async def _write_beat(self, call: Any) -> None:
        """Send a message without entries, which the coordinator answers."""
        self._unanswered += 1
        if self._unanswered > SILENT_BEATS:
            problem = f"the coordinator was silent for {SILENT_BEATS * BEAT_S:g} s"
            raise Unreachable(problem)
        async with asyncio.timeout(WRITE_S_MAX):
            await call.write(agent_pb2.RelayRequest())


_STREAM_ERRORS = (
    grpc.aio.UsageError,
    asyncio.InvalidStateError,  # a write after the end of the call
    TimeoutError,
    Unreachable,
)


def _to_end(end: agent_pb2.RelayedEnd) -> End:
    if not end.code:
        return OK
    return End(_CODES.get(end.code, grpc.StatusCode.UNKNOWN), end.text, end.details)


def _explain(error: BaseException) -> Unreachable:
    """Return why a stream has ended."""
    if isinstance(error, Unreachable):
        return error
    if not isinstance(error, grpc.aio.AioRpcError):
        return Unreachable(str(error) or "the coordinator does not read or answer")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Unreachable("the coordinator serves no relays: it is older than this relay")
    return Unreachable(f"{error.code().name}: {error.details() or 'the stream broke'}")


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
