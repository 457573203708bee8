"""Serves agents: each has a stream to the relay, as it would have to the coordinator."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from msgspec import Struct

from rallypoint.relay.agent import Agent, End, unavailable
from rallypoint.relay.uplinks import Seat, Uplinks
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.channel import MESSAGE_BYTES_MAX
from rallypoint.wire.credentials import TOKEN_KEY, sent_twice
from rallypoint.wire.errors import DETAILS_KEY, pack_status

HELLO_S_MAX = 10.0
"""Longest wait for the Hello of a new stream, as at the coordinator."""
FAREWELL_S_MAX = 6.0
"""Longest wait for the end of a stream whose agent sends nothing more. The coordinator ends it
sooner, if it is there."""
WRITE_S_MAX = 30.0
"""Longest write to an agent: it is gone, or does not read."""
AGENTS_MAX = 1_024
"""Agents at once, as many as a coordinator accepts from one relay."""
CARRIED_BYTES_MAX = MESSAGE_BYTES_MAX - 32 * 1024
"""Largest message of an agent: it becomes part of a message of the relay, together with what the
relay says of the agent. A larger one would end the stream that all agents share."""

EMPTY = "the hello is empty: the first message of an agent must be an encoded SessionRequest"

_EOF: object = grpc.aio.EOF
Context = grpc.aio.ServicerContext[bytes, bytes]


class Sessions:
    """The streams of agents."""

    def __init__(self, uplinks: Uplinks, *, is_certified: bool) -> None:
        """Begin without agents.

        Args:
            uplinks: the streams to coordinators.
            is_certified: every agent has shown a certificate, which was verified.
        """
        self._uplinks = uplinks
        self._is_certified = is_certified
        self._agents: set[Agent] = set()
        self.is_ending = False
        """The relay ends: what agents do is of no interest any more."""

    def __len__(self) -> int:
        """Return the number of agents."""
        return len(self._agents)

    def end(self) -> None:
        """End all streams: the relay ends, and its agents go another way."""
        self.is_ending = True
        for agent in self._agents:
            agent.finish(unavailable("the relay ends"))

    async def serve(self, _: object, context: Context) -> None:
        """Serve the stream of an agent until it ends."""
        end = await self._serve(context)
        if end is not None and end.code is not grpc.StatusCode.OK:
            trailing = ((DETAILS_KEY, end.details),) if end.details else ()
            await context.abort(end.code, end.text, trailing)

    async def _serve(self, context: Context) -> End | None:
        try:
            async with asyncio.timeout(HELLO_S_MAX):
                hello: Any = await context.read()
        except TimeoutError:
            return unavailable(f"no hello arrived within {HELLO_S_MAX:g} s")
        if hello is _EOF:
            return None
        if self.is_ending:
            return unavailable("the relay ends")
        if len(self._agents) >= AGENTS_MAX:
            text = f"the relay has {AGENTS_MAX:,} agents, the most that it carries"
            return unavailable(f"{text}; start another one and name both to the agents")
        if not hello:
            return End(grpc.StatusCode.INVALID_ARGUMENT, EMPTY)
        if len(hello) > CARRIED_BYTES_MAX:
            return _too_large(hello)
        tokens = [value for key, value in context.invocation_metadata() or () if key == TOKEN_KEY]
        if len(tokens) > 1:
            return _sent_twice()
        agent = Agent(self._opening(hello, context, *tokens))
        self._agents.add(agent)
        try:
            return await self._carry(agent, context)
        finally:
            self._agents.discard(agent)

    def _opening(
        self, hello: bytes, context: Context, token: str | bytes = ""
    ) -> agent_pb2.RelayedOpening:
        return agent_pb2.RelayedOpening(
            hello=hello,
            peer=context.peer(),
            authorization=str(token),
            is_certified=self._is_certified,
        )

    async def _carry(self, agent: Agent, context: Context) -> End | None:
        """Carry an agent to the coordinator of its job; return how its stream ends."""
        found: Seat | End | None = await self._uplinks.open(agent)
        if isinstance(found, End):
            return found
        assert found is not None
        place = _Place(found)
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(_read(agent, place, context))
            try:
                end = await self._write(agent, place, context)
            finally:
                reader.cancel()
        return end

    async def _write(self, agent: Agent, place: _Place, context: Context) -> End | None:
        """Send to an agent until its stream ends; go where its coordinator sends it."""
        hops = 0
        while True:
            try:
                await _write_all(agent, context)
            finally:
                if not self.is_ending:  # else the coordinator would think that the agent is gone
                    place.seat.close()
            found = await self._uplinks.follow(agent, hops)
            if not isinstance(found, Seat):
                return found or agent.end
            hops += 1
            place.seat = found


class _Place(Struct):
    """Where an agent is carried to at the moment."""

    seat: Seat


async def _read(agent: Agent, place: _Place, context: Context) -> None:
    """Send on what an agent says. It says nothing before its Hello is answered."""
    try:
        while (message := await context.read()) is not _EOF:
            if len(message) > CARRIED_BYTES_MAX:
                agent.finish(_too_large(message))
                return
            await place.seat.send(message)
        place.seat.done_sending()
        await asyncio.sleep(FAREWELL_S_MAX)  # the writer's end cancels this wait
    except grpc.aio.UsageError:
        pass  # the stream is gone
    agent.finish(unavailable("the agent has ended its stream"))


def _too_large(message: bytes) -> End:
    text = f"a message has {len(message):,} bytes; a relay carries at most {CARRIED_BYTES_MAX:,}"
    return End(grpc.StatusCode.RESOURCE_EXHAUSTED, text)


def _sent_twice() -> End:
    """End a stream as the coordinator would, which gets only one token of an agent."""
    code, reason = grpc.StatusCode.UNAUTHENTICATED, details_pb2.REFUSAL_REASON_ACCESS_TOKEN_INVALID
    status = pack_status(code, sent_twice(TOKEN_KEY), None, reason=reason)
    return End(code, status.message, status.SerializeToString())


async def _write_all(agent: Agent, context: Context) -> None:
    """Send to an agent what there is for it, until its stream has to end."""
    while agent.end is None or agent.unread:
        while (message := agent.take()) is not None:
            async with asyncio.timeout(WRITE_S_MAX):
                await context.write(message)
        if agent.end is None:
            await agent.wake.wait()
            agent.wake.clear()
