"""AgentService: one task that reads a node's stream and one that writes it.

The reader brings inputs to the coordinator; when its inbox is full the reader waits, and so does
the agent, through HTTP/2. The writer sends whatever its outbox holds; a peer that does not read for
a whole lease of its job is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.server.coordinator import Coordinator
from rallypoint.server.core import inputs
from rallypoint.server.core.explain import explain
from rallypoint.server.core.model import JOBS_MAX, Bar, JobId, Phase, SessionId
from rallypoint.server.core.state import State
from rallypoint.server.rpc.convert import (
    InvalidMessage,
    UnsupportedProtocol,
    to_heartbeat,
    to_hello,
    to_report,
)
from rallypoint.server.rpc.errors import lost_status, protocol_status
from rallypoint.server.rpc.outbox import Outbox, Outboxes
from rallypoint.server.rpc.stalls import Stalls
from rallypoint.server.rpc.status import abort_with, invalid_status
from rallypoint.server.rpc.views import (
    desired_message,
    notices_message,
    set_aside_message,
    waiting_message,
)
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration
from rallypoint.wire.log import get_logger

log = get_logger()

HELLO_S_MAX = 10.0
"""How long a new stream may take to say Hello."""
RETOLD_PART = 10
"""A change of the heartbeat interval is told when it is more than this part of it: a tenth."""
EXPLAINED_MS = 200
"""How long an explanation serves: a job's nodes ask one after the other, a thousand in a second."""

_EOF: object = grpc.aio.EOF
"""What a read brings when the peer has ended its side; `read` is annotated without it."""
_Context = grpc.aio.ServicerContext[agent_pb2.SessionRequest, agent_pb2.SessionResponse]


class AgentService(agent_grpc.AgentServiceServicer):
    """The agents' side of the coordinator."""

    def __init__(self, coordinator: Coordinator, outboxes: Outboxes, state: State) -> None:
        """Serve `coordinator`; `state` is read only for constants of this life."""
        self._coordinator = coordinator
        self._outboxes = outboxes
        self._state = state
        self._explained: dict[JobId, tuple[int, job_pb2.Waiting | None]] = {}
        """What each job waits for, and when that was worked out."""
        self._stalls = Stalls()

    async def Session(  # type: ignore[override]  # a handler may write instead of yield
        self,
        request_iterator: AsyncIterator[agent_pb2.SessionRequest],
        context: _Context,
    ) -> None:
        """Carry one connection of one agent until it breaks or is refused."""
        try:
            async with asyncio.timeout(HELLO_S_MAX):
                first = await context.read()
            if first is _EOF:
                return
            said = to_hello(first)
        except TimeoutError:
            await abort_with(context, invalid_status("message", "no hello came"))
        except InvalidMessage as invalid:
            log.warning("hello_invalid", path=invalid.path, problem=invalid.problem)
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        except UnsupportedProtocol as unsupported:
            await abort_with(context, protocol_status(unsupported.version))
        outbox = self._outboxes.open(said.identity.session, said.connection, said.identity.spec)
        try:
            end = await self._carry(said, context, outbox)
        finally:
            self._outboxes.close(outbox)
            sender = inputs.Sender(said.identity.session, said.connection, 0)
            await self._coordinator.submit(inputs.Broken(sender))
        if end is not None:
            await abort_with(context, end)

    async def _carry(self, said: inputs.Hello, context: _Context, outbox: Outbox) -> Status | None:
        """Read and write until either side ends; return the status to end with, if any."""
        await self._coordinator.submit(said)
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(self._read(said, context, outbox))
            await self._write(context, outbox)
            reader.cancel()
        return outbox.end

    async def _read(self, said: inputs.Hello, context: _Context, outbox: Outbox) -> None:
        session, connection = said.identity.session, said.connection
        try:
            while (envelope := await context.read()) is not _EOF:
                if envelope.session_id != session or envelope.connection != connection:
                    raise InvalidMessage("session_id", "a stream carries one session for now")
                report = to_report(envelope, said.identity.local_world_size)
                if report is not None:
                    await self._coordinator.submit(report)
                else:
                    self._coordinator.hear(to_heartbeat(envelope))
                    outbox.acknowledge_heartbeat(envelope.heartbeat.number)
        except InvalidMessage as invalid:
            log.warning("message_invalid", path=invalid.path, problem=invalid.problem)
            outbox.finish(invalid_status(invalid.path, invalid.problem))
        except grpc.aio.UsageError:
            pass  # the stream is gone; what follows is the same as for its end
        outbox.ended = True
        outbox.wake.set()

    async def _write(self, context: _Context, outbox: Outbox) -> None:
        """Send what the outbox holds until it is to end."""
        try:
            async with asyncio.timeout(None) as scope:
                while outbox.end is None and not outbox.ended:
                    await outbox.wake.wait()
                    outbox.wake.clear()
                    self._stalls.begin(scope, self._state.lease_ms(outbox.spec) / 1000)
                    for message in self._take(outbox):
                        await context.write(message)
                    if outbox.heartbeat > outbox.answered:
                        await context.write(await self._answer(outbox))
                    self._stalls.end(scope)
        except TimeoutError:
            log.warning("peer_does_not_read", session_id=outbox.session)
            outbox.finish(lost_status())
        finally:
            self._stalls.end(scope)

    def _take(self, outbox: Outbox) -> list[agent_pb2.SessionResponse]:
        """Empty the outbox into messages, in the order in which they have to be sent."""
        found: list[agent_pb2.SessionResponse] = []
        if outbox.end is not None:
            return found
        if outbox.welcome is not None:
            found.append(self._envelope(outbox, welcome=self._welcome(outbox)))
            outbox.welcome = outbox.desired = outbox.notify = None
        if outbox.desired is not None:
            found.append(self._envelope(outbox, desired=desired_message(outbox.desired)))
            outbox.desired = None
        if outbox.notify is not None:
            found.append(self._envelope(outbox, notices=notices_message(outbox.notify)))
            outbox.notify = None
        return found

    async def _answer(self, outbox: Outbox) -> agent_pb2.SessionResponse:
        """Answer the latest heartbeat; a node that stands by learns what its job waits for."""
        outbox.answered = outbox.heartbeat
        message = agent_pb2.Acknowledgement(heartbeat=outbox.heartbeat)
        if not outbox.runs_workers:
            session = outbox.session
            waiting = await self._coordinator.read(
                lambda state, now_ms: self._explain(state, session, now_ms)
            )
            if waiting is not None:
                message.waiting.CopyFrom(waiting)
        interval_ms = self._state.heartbeat_ms(outbox.spec)
        if abs(interval_ms - outbox.interval_ms) * RETOLD_PART > outbox.interval_ms:
            outbox.interval_ms = interval_ms
            message.heartbeat_interval.CopyFrom(to_duration(interval_ms))
            message.lease.CopyFrom(to_duration(self._state.lease_ms(outbox.spec)))
        return self._envelope(outbox, acknowledgement=message)

    def _explain(self, state: State, session: SessionId, now_ms: int) -> job_pb2.Waiting | None:
        """Return what the session's job waits for; worked out once for all of its nodes."""
        node = state.nodes.get(session)
        if node is None:
            return None
        job = state.jobs[node.job_id]
        if node.bar is not Bar.NONE and job.phase is Phase.RUNNING and not node.member:
            return set_aside_message(job, node, now_ms)
        known = self._explained.get(node.job_id)
        if known is None or not 0 <= now_ms - known[0] < EXPLAINED_MS:
            waiting = explain(state, job, now_ms)
            known = (now_ms, None if waiting is None else waiting_message(waiting))
            self._explained[node.job_id] = known
            if len(self._explained) > JOBS_MAX:
                self._explained.clear()
        return known[1]

    def _welcome(self, outbox: Outbox) -> agent_pb2.Welcome:
        assert outbox.welcome is not None
        state = self._state
        outbox.interval_ms = state.heartbeat_ms(outbox.spec)
        return agent_pb2.Welcome(
            coordinator_id=state.coordinator_id,
            coordinator_durable=state.durable,
            node_name=outbox.welcome.name,
            run=outbox.welcome.run,
            heartbeat_interval=to_duration(outbox.interval_ms),
            lease=to_duration(state.lease_ms(outbox.spec)),
            desired=None if outbox.desired is None else desired_message(outbox.desired),
            notices=None if outbox.notify is None else notices_message(outbox.notify),
        )

    def _envelope(
        self,
        outbox: Outbox,
        *,
        welcome: agent_pb2.Welcome | None = None,
        desired: agent_pb2.DesiredState | None = None,
        notices: agent_pb2.Notices | None = None,
        acknowledgement: agent_pb2.Acknowledgement | None = None,
    ) -> agent_pb2.SessionResponse:
        return agent_pb2.SessionResponse(
            session_id=SessionId(outbox.session),
            connection=outbox.connection,
            acknowledged=outbox.acknowledged,
            epoch=self._outboxes.epoch,
            welcome=welcome,
            desired=desired,
            notices=notices,
            acknowledgement=acknowledgement,
        )
