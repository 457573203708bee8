"""A peer that is one version ahead: what is new in its messages disturbs nothing, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.agent.core.reports import Report
from rallypoint.agent.session.link import Link
from rallypoint.agent.session.translate import parse_desired, parse_notices
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import event_service_pb2 as event_pb2
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.wire.channel import client_options
from support.contract.samples import holding_hello, ready_hello, session_id
from support.core.served import LIMIT_S, served
from support.versions.ahead import NEW_ARM, NEW_NUMBER, Ahead

PATH = "/rallypoint.v1.AgentService/Session"


@pytest.fixture(scope="module")
def ahead() -> Ahead:
    return Ahead()


class NewerAgent:
    """A stream of an agent of the next version."""

    def __init__(self, ahead: Ahead, channel: grpc.aio.Channel, number: int = 1) -> None:
        self._ahead = ahead
        self._session = session_id(number)
        self._sequence = 0
        self._epoch = 0
        self.call: Any = channel.stream_stream(
            PATH,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=agent_pb2.SessionResponse.FromString,
        )()

    async def hello(self, lowest: int, highest: int, hello: agent_pb2.Hello) -> None:
        hello.min_protocol_version, hello.protocol_version = lowest, highest
        hello.capabilities.extend([agent_pb2.CAPABILITY_NOTICES])
        message = self._ahead.read(
            agent_pb2.SessionRequest(session_id=self._session, connection=1, hello=hello)
        )
        message.hello.capabilities.append(NEW_NUMBER)
        await self.call.write(message)

    async def report(self, **report: Any) -> Any:
        """Send a report with everything that is new."""
        self._sequence += 1
        message = self._ahead.read(
            agent_pb2.SessionRequest(
                session_id=self._session,
                connection=1,
                sequence=self._sequence,
                epoch=self._epoch,
                **report,
            )
        )
        await self.call.write(message)
        return message

    async def write_new_kind(self) -> None:
        """Send a report of a kind that only the next version has."""
        message = self._ahead.make("SessionRequest")
        message.session_id, message.connection, message.epoch = self._session, 1, self._epoch
        self._sequence += 1
        message.sequence = self._sequence
        getattr(message, NEW_ARM).SetInParent()
        await self.call.write(message)

    async def read(self) -> agent_pb2.SessionResponse:
        async with asyncio.timeout(LIMIT_S):
            message = await self.call.read()
        assert isinstance(message, agent_pb2.SessionResponse), await self.call.details()
        self._epoch = message.epoch
        return message

    async def desired(self, state: str) -> None:
        """Read until the coordinator wants a state of the node."""
        while (await self.read()).desired.WhichOneof("state") != state:
            pass


def one_node() -> agent_pb2.Hello:
    hello = ready_hello(1)
    hello.spec.CopyFrom(job_pb2.JobSpec(min_nodes=1, max_nodes=1, max_restarts=1))
    hello.local_world_size = 1
    return hello


async def test_newer_agent_runs_a_job(ahead: Ahead) -> None:
    """It offers [1, 2] and gets 1; a failure, a restart, success; new fields in everything."""
    async with served() as server:
        agent = NewerAgent(ahead, server.channel)
        await agent.hello(1, 2, one_node())
        welcome = (await agent.read()).welcome
        await agent.report(started=agent_pb2.Started(round=1, pids=[4_000]))
        failed = node_pb2.Worker(local_rank=0, exit=node_pb2.WorkerExit(exit_code=1))
        await agent.report(exited=agent_pb2.Exited(round=1, workers=[failed]))
        await agent.desired("stop")
        await agent.report(ready=agent_pb2.Ready(round=1, master_port=20_001))
        await agent.desired("run")
        await agent.report(started=agent_pb2.Started(round=2, pids=[4_001]))
        done = node_pb2.Worker(local_rank=0, exit=node_pb2.WorkerExit(exit_code=0))
        await agent.report(exited=agent_pb2.Exited(round=2, workers=[done]))
        await agent.report(succeeded=agent_pb2.Succeeded(round=2))
        await agent.desired("finished")

    assert (1, [agent_pb2.CAPABILITY_NOTICES]) == (
        welcome.protocol_version,
        list(welcome.capabilities),
    )
    assert welcome.desired.HasField("run")


async def test_report_of_a_new_kind_is_acknowledged(ahead: Ahead) -> None:
    """And ignored: nothing happens to the round."""
    async with served() as server:
        agent = NewerAgent(ahead, server.channel)
        await agent.hello(1, 2, one_node())
        await agent.read()
        await agent.report(started=agent_pb2.Started(round=1, pids=[4_000]))
        await agent.write_new_kind()
        beat = ahead.read(
            agent_pb2.SessionRequest(
                session_id=session_id(1),
                connection=1,
                epoch=agent._epoch,
                heartbeat=agent_pb2.Heartbeat(number=1),
            )
        )
        await agent.call.write(beat)
        message = await agent.read()
        while message.acknowledged < 2:
            beat.heartbeat.number += 1
            await agent.call.write(beat)
            message = await agent.read()

    assert "acknowledgement" == message.WhichOneof("message")
    assert 2 == message.acknowledged


async def test_hello_with_new_values_everywhere_is_taken(ahead: Ahead) -> None:
    """Also by a coordinator that has not seen the round that the agent holds."""
    async with served() as server:
        agent = NewerAgent(ahead, server.channel)
        hello = holding_hello(1, 1)
        hello.held.order.header.reason = NEW_NUMBER  # type: ignore[assignment]  # the next version's
        await agent.hello(1, 2, hello)
        welcome = await agent.read()

    assert welcome.HasField("welcome")


class Follower:
    """The owner of a link that notes what arrives."""

    def __init__(self) -> None:
        self.kinds: list[str | None] = []
        self.got = asyncio.Event()
        self.dismissed: list[str] = []

    def hello(self) -> agent_pb2.Hello:
        return one_node()

    def unacknowledged(self) -> tuple[int, tuple[Report, ...]]:
        return 1, ()

    def epoch(self) -> int:
        return 0

    def now_ms(self) -> int:
        return 0

    def holds_round(self) -> bool:
        return False

    def on_confirmed(self, sent_ms: int) -> None: ...

    def on_message(self, message: agent_pb2.SessionResponse) -> None:
        kind = message.WhichOneof("message")
        self.kinds.append(kind)
        if kind == "desired":
            received = parse_desired(message.epoch, message.desired, 0)
            self.kinds.append("ignored" if received is None else type(received.desired).__name__)
        if kind == "notices":
            self.kinds += [notice.node for notice in parse_notices(message.notices, 0)]
            self.got.set()

    def on_disconnected(self, why: str, *, is_undecided: bool = False) -> None: ...

    def on_dismissed(self, exit_code: int, text: str) -> None:
        self.dismissed.append(text)


@asynccontextmanager
async def newer_coordinator(messages: list[Any]) -> AsyncIterator[str]:
    """Serve a coordinator that sends these messages after a Hello."""

    async def session(requests: Any, context: Any) -> None:
        await context.read()
        for message in messages:
            await context.write(message)
        await asyncio.sleep(LIMIT_S)

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(
                session,
                request_deserializer=agent_pb2.SessionRequest.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )

    server = grpc.aio.server(options=client_options())
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def answer(ahead: Ahead, **message: Any) -> Any:
    """Return a message to the agent with everything that is new."""
    return ahead.read(
        agent_pb2.SessionResponse(session_id=session_id(1), connection=1, epoch=7, **message)
    )


async def test_agent_understands_a_newer_coordinator(ahead: Ahead) -> None:
    """New fields are ignored, and so are a message, a state and a kind of notice that are new."""
    new_kind = answer(ahead)
    getattr(new_kind, NEW_ARM).SetInParent()
    new_state = answer(ahead, desired=agent_pb2.DesiredState(revision=2))
    getattr(new_state.desired, NEW_ARM).SetInParent()
    stop = agent_pb2.Stop(round=1)
    told = answer(ahead, desired=agent_pb2.DesiredState(revision=3, stop=stop))
    told.desired.stop.reason = NEW_NUMBER
    notice = job_pb2.Notice(kind=job_pb2.NOTICE_KIND_DRAIN, node_name="b")
    welcome = agent_pb2.Welcome(node_name="a", run=1, protocol_version=1)
    welcome.heartbeat_interval.FromSeconds(1)
    welcome.lease.FromSeconds(5)
    messages = [
        answer(ahead, welcome=welcome),
        new_kind,
        new_state,
        told,
        answer(ahead, notices=agent_pb2.Notices(notices=[notice])),
    ]
    user = Follower()
    async with newer_coordinator(messages) as target:
        link = Link(target, session_id(1), user)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(link.run())
            async with asyncio.timeout(LIMIT_S):
                await user.got.wait()
            running.cancel()

    assert ["welcome", None, "desired", "ignored", "desired", "DesiredStop", "notices", "b"] == (
        user.kinds
    )
    assert [] == user.dismissed


def test_event_of_a_new_kind_is_still_an_event(ahead: Ahead) -> None:
    """A reader of this version sees its number and its job, and no kind that it knows."""
    event = ahead.make("Event")
    event.sequence, event.job_id = 7, "job"
    getattr(event, NEW_ARM).SetInParent()
    seen = event_pb2.Event.FromString(event.SerializeToString())

    assert (7, "job", None) == (seen.sequence, seen.job_id, seen.WhichOneof("detail"))
