"""What an agent gets while the loss of its node is being written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from rallypoint.server.core.events.kinds import EventKind
from rallypoint.server.core.messages.effects import Send
from rallypoint.server.core.messages.records import EventsLogged
from rallypoint.server.core.model.desired import DesiredRun
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.round import Assignment, RoundHeader, RoundReason
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.core.reads.replay import JournalRecord
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.memory import MemoryJournal
from rallypoint.server.rpc.connections import Connections
from rallypoint.server.rpc.envelopes import Envelopes
from rallypoint.server.rpc.guards.tokens import WorkerTokens
from rallypoint.server.rpc.outbox import Outbox, Outboxes
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from support.core.served import LIMIT_S, Agent, served

SHORT = Timing(window_ms=0, heartbeat_ms=100, lease_ms=300)
PLACE = Assignment(0, 0, 1, "default", 0, 1)
LONG = job_pb2.JobSpec(lease=Duration(seconds=60))


class HeldJournal:
    """Holds up the batch in which the loss of a node is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_written, self.may_go_on = asyncio.Event(), asyncio.Event()
        genuine = MemoryJournal.append

        async def append(
            journal: MemoryJournal, records: Sequence[JournalRecord], now_ms: int
        ) -> None:
            logged = [
                one
                for record in records
                if isinstance(record, EventsLogged)
                for one in record.events
            ]
            if any(event.kind is EventKind.NODE_DEPARTED for event in logged):
                self.is_written.set()
                await self.may_go_on.wait()
            await genuine(journal, records, now_ms)

        monkeypatch.setattr(MemoryJournal, "append", append)


def watch_beats(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[str]:
    """Return the sessions whose heartbeats the coordinator has read, in order."""
    beats, genuine = asyncio.Queue[str](), Connections.note

    def note(self: Connections, connection: object, envelope: agent_pb2.SessionRequest) -> object:
        noted = genuine(self, connection, envelope)  # type: ignore[arg-type]  # passed on
        if envelope.HasField("heartbeat"):
            beats.put_nowait(envelope.session_id)
        return noted

    monkeypatch.setattr(Connections, "note", note)
    return beats


async def acknowledged(agent: Agent) -> int:
    """Read until the stream ends; return the highest heartbeat that was acknowledged."""
    highest = 0
    try:
        while True:
            highest = max(highest, (await agent.read()).acknowledgement.heartbeat)
    except (EOFError, grpc.aio.AioRpcError):
        return highest


async def test_lost_node_gets_no_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat that arrives while the loss of its node is written is not acknowledged.

    The fence of the node counts from before, and the agent would count from this heartbeat.
    """
    held, beats = HeldJournal(monkeypatch), watch_beats(monkeypatch)
    async with served(SHORT) as server:
        other = server.agent("other", 2)
        await other.hello(spec=LONG)
        assert (await other.read()).welcome.desired.HasField("run")
        silent = await server.join("job", 1)
        async with asyncio.timeout(LIMIT_S):
            await held.is_written.wait()
            beat = agent_pb2.Heartbeat(number=1)
            await silent.write(agent_pb2.SessionRequest(heartbeat=beat))
            while await beats.get() != silent.session_id:
                pass
        await other.check_alive()
        held.may_go_on.set()

        assert await acknowledged(silent) == 0


def test_order_keeps_its_token_while_the_loss_of_its_node_is_written() -> None:
    """The state has lost the node already, and what was decided before is sent as it was."""
    state, tokens = State("c", 1), WorkerTokens("c")
    header = RoundHeader(3, 1, 1, 1, "10.0.0.1", 20_000, 0, RoundReason.FIRST, 1)
    outbox = Outbox(SessionId("s"), 1, JobId("job"))
    outbox.desired = Send(SessionId("s"), 1, DesiredRun(header, PLACE, 0))
    (message,) = Envelopes(Outboxes(), state, tokens).take(outbox)

    assert message.desired.run.worker_token == tokens.make(JobId("job"), run=1, round=3)
