"""How a session's stream ends: after a Goodbye, with the coordinator, and with a full inbox."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rallypoint.server.coordinator import Coordinator
from rallypoint.server.core.messages import inputs
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.journal.memory import MemoryJournal
from rallypoint.server.rpc import connections
from rallypoint.server.rpc.agent_service import AgentService
from rallypoint.server.rpc.guards.tokens import WorkerTokens
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from support.core.served import LIMIT_S, hello_of, served
from support.core.shell import running_shell

GOODBYE = agent_pb2.Goodbye(reason=agent_pb2.GOODBYE_REASON_SIGNAL, text="SIGTERM")


@pytest.mark.parametrize("half_closes", [False, True])
async def test_goodbye_is_acknowledged_and_the_stream_ends_well(half_closes: bool) -> None:
    """Also when the agent ends its side of the stream at once."""
    async with served() as server:
        agent = await server.join("job", 1)
        await agent.report(goodbye=GOODBYE)
        if half_closes:
            await agent.call.done_writing()
        while (await agent.read()).acknowledged < 1:
            pass
        with pytest.raises(EOFError):
            await agent.read()

        assert grpc.StatusCode.OK is await agent.call.code()


async def test_stream_that_ends_without_goodbye_is_not_acknowledged() -> None:
    """It ends too when the agent has nothing more to say, and the session is not over."""
    async with served() as server:
        agent = await server.join("job", 1)
        await agent.call.done_writing()
        with pytest.raises(EOFError):
            await agent.read()
        job = service_pb2.GetJobRequest(job_id="job")
        answer = await service_grpc.JobServiceStub(server.channel).GetJob(job)

        assert ["n1"] == [node.name for node in answer.job.nodes]


async def test_hello_of_a_shell_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell ends its side with its only message; the journal takes longer to write it."""
    append, may_write = MemoryJournal.append, asyncio.Event()

    async def wait(*arguments: Any) -> None:
        await may_write.wait()
        await append(*arguments)

    async with asyncio.timeout(LIMIT_S), served() as server:
        monkeypatch.setattr(MemoryJournal, "append", wait)
        agent = server.agent("job", 1)
        await agent.hello()
        await agent.call.done_writing()
        probe = health_pb2_grpc.HealthStub(server.channel)
        await probe.Check(health_pb2.HealthCheckRequest())  # it comes after the end of that side
        may_write.set()

        assert (await agent.read()).HasField("welcome")


async def test_what_readers_see_resumes_no_session() -> None:
    """A Hello with it is a newcomer's; with the id that the agent knows, it resumes the session."""
    async with served() as server:
        agent = await server.join("job", 1)
        jobs = service_grpc.JobServiceStub(server.channel)
        (shown,) = (await jobs.GetJob(service_pb2.GetJobRequest(job_id="job"))).job.nodes
        thief = server.agent("job", 1)
        thief.session_id = shown.session_id
        await thief.hello(node_name=shown.name, node_name_explicit=True)
        assert grpc.StatusCode.ALREADY_EXISTS is (await thief.ending())[0]
        await agent.check_alive()
        (after,) = (await jobs.GetJob(service_pb2.GetJobRequest(job_id="job"))).job.nodes
        again = agent.again(server)
        await again.hello()
        await again.read()
        await again.check_alive()

        assert agent.session_id != shown.session_id == after.session_id
        assert grpc.StatusCode.ABORTED is (await agent.ending())[0]


async def test_everyone_learns_that_the_loop_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents, watchers and probes, at once."""

    async def fail(*_: object) -> None:
        raise JournalFailed("no space left on device")

    async with served() as server:
        agents = [await server.join("job", 1), await server.join("other", 2)]
        jobs = service_grpc.JobServiceStub(server.channel)
        watch = jobs.WatchJob(service_pb2.WatchJobRequest(job_id="job"))
        await watch.read()
        probe = health_pb2_grpc.HealthStub(server.channel)
        health = probe.Watch(health_pb2.HealthCheckRequest())
        states = [(await health.read()).status]
        monkeypatch.setattr(MemoryJournal, "append", fail)
        await agents[0].report(succeeded=agent_pb2.Succeeded(round=1))
        async with asyncio.timeout(LIMIT_S):
            endings = [await agent.ending() for agent in agents]
            states.append((await health.read()).status)
            watched = await watch.code()
        late = server.agent("late", 3)
        await late.hello()
        endings.append(await late.ending())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await jobs.GetJob(service_pb2.GetJobRequest(job_id="job"))

        ended = (
            grpc.StatusCode.UNAVAILABLE,
            "the coordinator has ended, or stopped serving this job",
        )
        assert [ended] * 3 == endings
        assert [grpc.StatusCode.UNAVAILABLE] * 2 == [watched, caught.value.code()]
        assert [1, 2] == states  # SERVING, NOT_SERVING
        assert isinstance(server.running.failed.exception(), JournalFailed)


async def test_full_inbox_does_not_hold_up_the_end_of_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait for room has a limit, so the server can stop."""
    genuine, is_waiting = Coordinator.submit, asyncio.Event()

    async def submit(self: Coordinator, input: inputs.Input) -> None:
        if isinstance(input, inputs.Broken):
            is_waiting.set()
            await asyncio.Event().wait()
        await genuine(self, input)

    monkeypatch.setattr(connections, "BROKEN_S_MAX", 0.01)
    monkeypatch.setattr(Coordinator, "submit", submit)
    async with asyncio.timeout(LIMIT_S), served() as server:
        agent = await server.join("job", 1)
        await agent.call.done_writing()
        code, _ = await agent.ending()
        await is_waiting.wait()

        assert grpc.StatusCode.OK is code


class SlowContext:
    """A call whose first write takes as long as the test wants; the next message is garbage."""

    def __init__(self) -> None:
        self.hello = asyncio.Event()
        """Set when the Hello was read."""
        self.writes = asyncio.Event()
        """Set when the first write has begun."""
        self.may_end = asyncio.Event()
        self.ended_well = False

    def peer(self) -> str:
        return "ipv4:10.0.0.1:4711"

    async def read(self) -> agent_pb2.SessionRequest:
        if not self.hello.is_set():
            self.hello.set()
            hello = hello_of("job", 1)
            return agent_pb2.SessionRequest(session_id=f"{1:032x}", connection=1, hello=hello)
        await self.writes.wait()
        raise DecodeError

    async def end_late(self) -> None:
        """Let the first write end when the garbage has been read."""
        await self.writes.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        self.may_end.set()

    async def write(self, message: agent_pb2.SessionResponse) -> None:
        self.writes.set()
        await self.may_end.wait()
        self.ended_well = True


async def test_garbage_cancels_no_write() -> None:
    """A cancelled first write would leave the stream open for ever: gRPC could send no status."""
    async with running_shell() as shell, asyncio.timeout(LIMIT_S):
        service = AgentService(shell.coordinator, shell.outboxes, shell.state, WorkerTokens("c"))
        context: Any = SlowContext()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(context.end_late())
            with pytest.raises(DecodeError):
                await service.Session(None, context)  # type: ignore[arg-type]

    assert context.ended_well
