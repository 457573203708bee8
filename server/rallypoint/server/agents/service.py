"""AgentService: one task reads an agent's stream, another writes it.

The reader turns messages into inputs of the coordinator. While the coordinator's inbox is full the
reader waits, and HTTP/2 flow control slows the agent down. The writer sends what the outbox holds.
A write that takes longer than the job's lease ends the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Protocol

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.base.log import get_logger
from rallypoint.server.access.gate import CURRENT
from rallypoint.server.access.tokens import ResumeTokens, WorkerTokens
from rallypoint.server.access.usage.lines import may_log
from rallypoint.server.access.usage.peers import Peers, Stream
from rallypoint.server.access.usage.stalls import Stalls
from rallypoint.server.agents.connections import (
    FAREWELL_S_MAX,
    Connection,
    Connections,
    Ended,
    note_ends,
)
from rallypoint.server.agents.envelopes import Envelopes
from rallypoint.server.agents.outbox import Outbox, Outboxes
from rallypoint.server.agents.relays.carrying import carry
from rallypoint.server.agents.relays.seats import ServingShard
from rallypoint.server.contract import limits
from rallypoint.server.contract.calls import CallRefused, InvalidMessage
from rallypoint.server.contract.errors import invalid_status, lost_status, silent_status
from rallypoint.server.contract.waiting import Explanations
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc

log = get_logger()

_EOF: object = grpc.aio.EOF
"""`read` returns it when the peer has ended its side; the annotation of `read` omits it."""
_Context = grpc.aio.ServicerContext[agent_pb2.SessionRequest, agent_pb2.SessionResponse]
Find = Callable[[agent_pb2.SessionRequest], "Sessions | Status"]
"""Returns who serves a stream with this first message, or the status to end the stream with."""


class Sessions(Protocol):
    """Serves the streams of agents."""

    async def serve(
        self, first: agent_pb2.SessionRequest, context: _Context, stream: Stream
    ) -> Status | None:
        """Serve a stream whose first message was read; return the status to end with, if any.

        Raises:
            LimitExceeded: when the Hello is too much for its host.
        """


async def accept(context: _Context, peers: Peers, find: Find) -> None:
    """Read the first message of an agent's stream, and let a service serve the stream.

    Args:
        context: of the call.
        peers: what each host uses.
        find: chooses the service.
    """
    with peers.stream(context.peer(), time.monotonic()) as stream:
        end = await _serve_first(context, stream, find)
    if end is not None:
        raise CallRefused(end)


async def _serve_first(context: _Context, stream: Stream, find: Find) -> Status | None:
    try:
        async with asyncio.timeout(limits.HELLO_S_MAX):
            first = await context.read()
    except TimeoutError:
        return silent_status(f"no hello arrived within {limits.HELLO_S_MAX:g} s")
    if first is _EOF:
        return None
    entry = CURRENT.get()
    if entry is not None:
        entry.require_job(first.hello.job_id)
        stream.holder = entry.holder
    found = find(first)
    if isinstance(found, Status):
        return found
    if entry is not None:
        entry.note_joined()
    return await found.serve(first, context, stream)


class AgentService(agent_grpc.AgentServiceServicer):
    """Serves agents."""

    def __init__(
        self,
        coordinator: Coordinator,
        outboxes: Outboxes,
        state: State,
        worker_tokens: WorkerTokens,
        resume_tokens: ResumeTokens | None = None,
        peers: Peers | None = None,
        explanations: Explanations | None = None,
    ) -> None:
        """Serve agents of `coordinator`.

        Args:
            coordinator: receives the messages of agents.
            outboxes: hold the messages to agents.
            state: the live state. Read without a turn for the coordinator's id and for heartbeat
                intervals and leases, which follow the number of sessions.
            worker_tokens: made for the workers of each round.
            resume_tokens: made for each session; None: with a key of this process.
            peers: what each host uses; None: of this service alone.
            explanations: of what jobs wait for; None: of this service alone.
        """
        self._coordinator = coordinator
        self._outboxes = outboxes
        self._state = state
        self._envelopes = Envelopes(outboxes, state, worker_tokens, resume_tokens, explanations)
        self._stalls = Stalls()
        self._peers = peers or Peers()
        self.connections = Connections(coordinator, outboxes, state, self._envelopes, self._peers)

    async def Session(  # type: ignore[override]  # a handler may write instead of yield
        self,
        request_iterator: AsyncIterator[agent_pb2.SessionRequest],
        context: _Context,
    ) -> None:
        """Serve one connection of one agent until it breaks or is refused."""
        await accept(context, self._peers, lambda first: self)

    async def Relay(  # type: ignore[override]  # the same
        self,
        request_iterator: AsyncIterator[agent_pb2.RelayRequest],
        context: grpc.aio.ServicerContext[agent_pb2.RelayRequest, agent_pb2.RelayResponse],
    ) -> None:
        """Serve the agents of one relay until its stream ends."""
        await carry(context, self._peers, lambda first: ServingShard(self.connections))

    async def serve(
        self, first: agent_pb2.SessionRequest, context: _Context, stream: Stream
    ) -> Status | None:
        """Serve a connection whose first message was read; return the status to end with, if any.

        Raises:
            LimitExceeded: when the Hello is too much for its host.
        """
        opened = self.connections.open(first, stream)
        if isinstance(opened, Status):
            return opened
        try:
            return await self._carry(opened, context)
        finally:
            if self.connections.close(opened):
                await self._note_end(opened)

    async def _note_end(self, connection: Connection) -> None:
        """Inform the core that a stream has ended.

        Not when the caller's token was revoked: with a newer one the agent is back before its lease
        ends, and keeps its place. The time that a broken stream has may be too short for that.
        """
        entry = CURRENT.get()
        if entry is None or not entry.is_revoked:
            await note_ends([Ended(self._coordinator, inputs.Broken(connection.sender))])

    async def _carry(self, connection: Connection, context: _Context) -> Status | None:
        """Read and write until either side ends; return the status to end with, if any."""
        outbox = connection.outbox
        await self.connections.submit(connection)
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(self._read_all(connection, context))
            await self._write(context, outbox)
            reader.cancel()
        if outbox.failure is not None:
            raise outbox.failure
        return outbox.end

    async def _read_all(self, connection: Connection, context: _Context) -> None:
        """Read until the stream ends; leave an exception to the writer.

        Raised here, it would cancel a write in progress. Then gRPC does not know whether the
        initial metadata was sent, cannot send a status, and the stream stays open for ever.
        """
        try:
            await self._read(connection, context)
        except Exception as error:  # noqa: BLE001  # `_carry` raises it
            connection.outbox.failure = error
            connection.outbox.wake.set()

    async def _read(self, connection: Connection, context: _Context) -> None:
        outbox = connection.outbox
        try:
            while (envelope := await context.read()) is not _EOF:
                await self.connections.take(connection, envelope)
        except InvalidMessage as invalid:
            if may_log():
                log.warning("message_rejected", path=invalid.path, problem=invalid.problem)
            outbox.finish(invalid_status(invalid))
            return
        except grpc.aio.UsageError:
            pass  # the stream is gone
        else:
            if connection.is_leaving or not outbox.is_open:
                # The peer may end its side after its Goodbye, and a shell does so after its Hello.
                # It gets its answer, which a journal delays. The writer's end cancels this wait.
                await asyncio.sleep(FAREWELL_S_MAX)
        outbox.ended = True
        outbox.wake.set()

    async def _write(self, context: _Context, outbox: Outbox) -> None:
        """Send what the outbox holds until the stream ends."""
        try:
            async with asyncio.timeout(None) as scope:
                send = partial(self._send, context, outbox, scope)
                while outbox.end is None and not outbox.ended and outbox.failure is None:
                    await outbox.wake.wait()
                    outbox.wake.clear()
                    for message in self._envelopes.take(outbox):
                        await send(message)
                    if outbox.has_left and outbox.end is None:
                        await send(self._envelopes.acknowledge(outbox))
                        return
                    if outbox.is_open and outbox.heartbeat > outbox.answered:
                        await send(await self._answer(outbox))
        except TimeoutError:
            if may_log():
                log.warning("write_timed_out")
            outbox.finish(lost_status())
        finally:
            self._stalls.end(scope)

    async def _send(
        self,
        context: _Context,
        outbox: Outbox,
        scope: asyncio.Timeout,
        message: agent_pb2.SessionResponse,
    ) -> None:
        """Send a message within the lease."""
        self._stalls.begin(scope, self._state.lease_ms(outbox.spec) / 1000)
        await context.write(message)
        self._stalls.end(scope)

    async def _answer(self, outbox: Outbox) -> agent_pb2.SessionResponse:
        """Answer the latest heartbeat; tell a node without workers what its job waits for."""
        session, envelopes = outbox.session, self._envelopes
        answer = envelopes.answer_now(outbox, self._coordinator.now_ms())
        if answer is not None:
            return answer
        waiting = await self._coordinator.read(
            lambda state, now_ms: envelopes.explain(session, now_ms)
        )
        return envelopes.answer(outbox, waiting)
