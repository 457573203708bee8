"""Sessions and reports of agents and workers: how they begin, what they may send, how they end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from msgspec import Struct
from structlog.testing import capture_logs

from rallypoint.agent.core.desired import DesiredDrain
from rallypoint.agent.session.translate import parse_desired
from rallypoint.server.access.tokens import ResumeTokens, WorkerTokens
from rallypoint.server.access.usage.allowances import BEATS_PER_INTERVAL, QUEUED_MAX, Beats
from rallypoint.server.agents import connections
from rallypoint.server.agents.connections import Connections
from rallypoint.server.agents.desired import desired_message
from rallypoint.server.agents.envelopes import Envelopes
from rallypoint.server.agents.outbox import Outbox, Outboxes
from rallypoint.server.agents.service import AgentService
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Send
from rallypoint.server.core.messages.records import EventsLogged
from rallypoint.server.core.model.desired import (
    Desired,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
    Drain,
)
from rallypoint.server.core.model.events import EventKind
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.round import Assignment, RoundHeader, RoundReason
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.journal.memory import MemoryJournal
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as jobs_grpc
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.v1 import worker_service_pb2_grpc as worker_grpc
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from support.core.served import LIMIT_S, Agent, Served, hello_of, served
from support.core.shell import running_shell

# How a session's stream ends: after a Goodbye, with the coordinator, and with a full inbox.

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


# --- A session is resumed with the token of its Welcome, and with nothing else ---

OTHERS = ResumeTokens()
"""Tokens of another coordinator."""
NUMBER_MAX = 2**53 - 1


async def steal(server: Served, agent: Agent, token: str, connection: int) -> tuple[str, str]:
    """Say Hello with everything but the agent's token; return how that stream ended."""
    thief = agent.again(server, token=token)
    thief.connection = connection
    await thief.hello()
    code, text = await thief.ending()
    return code.name, text


@pytest.mark.parametrize("connection", [1, 2, NUMBER_MAX])
@pytest.mark.parametrize(
    "token", ["", OTHERS.make(f"{1:032x}"), "0" * 64], ids=["none", "of another", "wrong"]
)
async def test_session_cannot_be_taken_over(token: str, connection: int) -> None:
    """Its id is not enough, whatever the number of the connection: its stream stays open."""
    async with served() as server:
        agent = await server.join("job", 1)
        await agent.check_alive()
        stolen = await steal(server, agent, token, connection)
        await agent.check_alive()
        jobs = service_grpc.JobServiceStub(server.channel)
        (node,) = (await jobs.GetJob(service_pb2.GetJobRequest(job_id="job"))).job.nodes

    assert node.attached
    if connection == 1:
        assert stolen == ("ABORTED", "connection 1 is older than connection 1 of the same agent")
    else:
        refusal = "only the token of its Welcome resumes this session"
        assert ("PERMISSION_DENIED", refusal) == stolen


async def test_token_resumes_a_session() -> None:
    """The connection before ends."""
    async with served() as server:
        agent = await server.join("job", 1)
        await agent.check_alive()
        again = agent.again(server)
        await again.hello()
        welcome = (await again.read()).welcome
        await again.check_alive()
        replaced, _ = await agent.ending()

    assert agent.token == welcome.resume_token
    assert re.fullmatch("[0-9a-f]{64}", agent.token)
    assert grpc.StatusCode.ABORTED is replaced


async def test_token_is_never_logged() -> None:
    """Neither when it is taken, nor when another one is refused."""
    with capture_logs() as lines:
        async with served() as server:
            agent = await server.join("job", 1)
            await agent.check_alive()
            wrong = "f" * 64
            await steal(server, agent, wrong, 2)
            again = agent.again(server)
            await again.hello()
            await again.check_alive()

    assert "not proven" in {line.get("why") for line in lines}
    assert not [line for line in lines if agent.token in str(line) or wrong in str(line)]


def test_tokens_belong_to_one_session_and_one_coordinator() -> None:
    """They cannot be guessed."""
    tokens = ResumeTokens()
    token = tokens.make("a")

    assert tokens.is_proof("a", token)
    assert not tokens.is_proof("b", token)
    assert not OTHERS.is_proof("a", token)
    assert not tokens.is_proof("a", "")


# --- What an agent gets while the loss of its node is being written ---

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


# --- An agent that sends heartbeats or large messages in a loop slows only itself down ---

INTERVAL_S = 8.0
HOURS = Timing(window_ms=0, heartbeat_ms=3_600_000, lease_ms=4 * 3_600_000)
"""What is held back for a part of these is not heard in a test."""
LEASE_S = 3 * INTERVAL_S
WORKERS = 4_096
BURST = BEATS_PER_INTERVAL + 3


def test_beats_of_an_interval_are_bounded() -> None:
    """A few come at once, and as many in each interval; one that waits may continue after that."""
    beats = Beats()
    delays = [beats.delay_s(1_000.0, INTERVAL_S, LEASE_S) for _ in range(BURST + 2)]

    assert [0.0] * BURST == delays[:-2]
    assert [INTERVAL_S / BEATS_PER_INTERVAL * late for late in (1, 2)] == delays[-2:]
    assert beats.delay_s(1_000.0 + 4 * INTERVAL_S, INTERVAL_S, LEASE_S) == 0.0


def test_one_too_many_of_a_relay_is_not_counted() -> None:
    """So the next one that is in time is heard."""
    beats = Beats()
    heard = [beats.allows(1_000.0, INTERVAL_S, LEASE_S) for _ in range(50)]

    assert BURST == sum(heard)
    assert beats.allows(1_000.0 + INTERVAL_S / BEATS_PER_INTERVAL, INTERVAL_S, LEASE_S)


@pytest.mark.parametrize(("lease_s", "queued"), [(60.0, 60), (86_400.0, QUEUED_MAX)])
def test_what_a_network_has_held_back_is_taken_at_once(lease_s: float, queued: int) -> None:
    """An exit that follows these heartbeats is dated when it comes, not seconds later."""
    beats = Beats()
    delays = {beats.delay_s(1_000.0, 1.0, lease_s) for _ in range(queued)}

    assert delays == {0.0}


def note_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the session of each message that the coordinator reads, as it happens."""
    read: list[str] = []
    genuine = Connections.note

    def note(self: Connections, connection: object, envelope: object) -> object:
        read.append(envelope.session_id)  # type: ignore[attr-defined]  # a SessionRequest
        return genuine(self, connection, envelope)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(Connections, "note", note)
    return read


async def test_heartbeats_in_a_loop_are_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator reads a few of them, and answers another agent meanwhile."""
    read = note_reads(monkeypatch)
    async with asyncio.timeout(60), served(HOURS) as server:
        loud, quiet = await server.join("job", 1), await server.join("other", 2)
        read.clear()
        for number in range(1, 201):
            beat = agent_pb2.Heartbeat(number=number)
            await loud.write(agent_pb2.SessionRequest(heartbeat=beat))
        await quiet.check_alive()

        assert 1 == read.count(quiet.session_id)
        assert 1 <= read.count(loud.session_id) <= BEATS_PER_INTERVAL + 4


async def test_large_messages_in_a_loop_are_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator reads one of them at once, and answers another agent meanwhile."""
    read = note_reads(monkeypatch)
    monkeypatch.setattr(connections, "REST_RATIO", 1e6)
    monkeypatch.setattr(connections, "REST_S_MAX", 3_600.0)
    async with asyncio.timeout(60), served(HOURS) as server:
        loud, quiet = server.agent("job", 1), await server.join("other", 2)
        await loud.hello(local_world_size=WORKERS)
        await loud.read()
        read.clear()
        exit = node_pb2.WorkerExit(exit_code=1)
        workers = [node_pb2.Worker(local_rank=rank, exit=exit) for rank in range(WORKERS)]
        for _ in range(2):  # more would wait to be sent
            await loud.report(exited=agent_pb2.Exited(round=1, workers=workers))
        await quiet.check_alive()
        await quiet.check_alive()

        assert read.count(loud.session_id) <= 1


# --- A drain in the desired state: from the coordinator's core to the agent's ---

SESSION = SessionId("a" * 32)
STOP = DesiredStop(1, RoundReason.DRAINED, 30_000, "b was drained")


def received(desired: Desired, left_ms: int = 0) -> DesiredDrain | None:
    """Return the drain that an agent reads from a desired state at 7 s of its clock."""
    message = desired_message(Send(SESSION, 3, desired, left_ms))
    found = parse_desired(1, message, 7_000)
    assert found is not None and (found.epoch, found.revision) == (1, 3)
    return found.drain


def test_drain_arrives_with_the_time_that_is_left() -> None:
    """The agent counts from its own clock; the reason is for people."""
    drain = Drain(until_ms=99_000, reason="maintenance")
    stop = DesiredStop(1, RoundReason.DRAINED, 30_000, "b was drained", drain)

    assert received(stop, 5_000) == DesiredDrain(12_000, "maintenance")
    assert received(stop, 0) == DesiredDrain(7_000, "maintenance")


def test_no_drain_is_absent() -> None:
    """A node that does not drain, or that runs nothing, has none."""
    assert received(STOP) is None
    assert received(DesiredStandby(spare=False)) is None


# --- WorkerService: who may report progress, and what the reports change ---

Code = grpc.StatusCode


class Worker(Struct):
    """A worker of a round with one node."""

    server: Served
    agent: Agent
    token: str

    async def report(self, step: int, token: str | None = "") -> int:
        """Report a step; return the highest one that the coordinator knows."""
        metadata = None if token is None else ((WORKER_TOKEN_KEY, token or self.token),)
        stub: Any = worker_grpc.WorkerServiceStub(self.server.channel)
        request = worker_pb2.ReportProgressRequest(job_id=self.agent.job_id, step=step)
        return int((await stub.ReportProgress(request, metadata=metadata)).step)

    async def round(self) -> Any:
        stub: Any = jobs_grpc.JobServiceStub(self.server.channel)
        return (await stub.GetJob(jobs_pb2.GetJobRequest(job_id=self.agent.job_id))).job.round

    async def step_of_round(self) -> int:
        return int((await self.round()).step)

    async def refusal(self, *args: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.report(*args)
        return caught.value.code()


@asynccontextmanager
async def working(job_id: str = "job") -> AsyncIterator[Worker]:
    async with served() as server:
        agent = server.agent(job_id, 1)
        await agent.hello()
        order = (await agent.read()).welcome.desired.run
        yield Worker(server, agent, order.worker_token)


async def test_highest_step_counts() -> None:
    """Reports may come late, or twice."""
    async with working() as worker:
        steps = [await worker.report(step) for step in (0, 3, 9, 9, 4)]

        assert [0, 3, 9, 9, 9] == steps
        assert 9 == await worker.step_of_round()


async def test_watchers_see_steps() -> None:
    """A reader learns how far training has come."""
    async with working() as worker:
        stub: Any = jobs_grpc.JobServiceStub(worker.server.channel)
        watch = stub.WatchJob(jobs_pb2.WatchJobRequest(job_id="job"))
        await watch.read()
        await worker.report(5)
        answer = await watch.read()

        assert 5 == answer.job.round.step


async def test_milestones_are_in_the_timeline() -> None:
    """A reader sees when the last worker reached them; those of a newer agent are ignored."""
    async with working() as worker:
        reached = [
            agent_pb2.MilestoneReached(milestone=one, age=Duration(seconds=3_600))
            for one in (agent_pb2.MILESTONE_IMPORTED, agent_pb2.Milestone.ValueType(77))
        ]
        await worker.agent.report(reached=agent_pb2.Reached(round=1, milestones=reached))
        await worker.report(1)
        found = (await worker.round()).timeline

        assert {"sealed", "imported", "first_step"} == {one.name for one, _ in found.ListFields()}
        assert found.sealed == found.imported
