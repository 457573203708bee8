"""The link: how a session ends, which heartbeats it confirms, and its timing."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.agent.core.reports import GoodbyeKind, GoodbyeReport, Report
from rallypoint.agent.session.endings import BrokenStream
from rallypoint.agent.session.link import Link
from rallypoint.agent.session.reasons import plain_reason
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.durations import to_duration

BROKEN = grpc.aio.AioRpcError(
    grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details="Socket closed"
)
FINISHED = asyncio.InvalidStateError("RPC already finished.")
BRIEF_LEASE_MS = 100
MISUSED = grpc.aio.UsageError("RPC is closed")


@dataclass
class FakeCall:
    """A stream that brings a Welcome and then ends, for reader and writer at once."""

    on_read: Exception
    on_write: Exception
    is_welcomed: bool = False
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> agent_pb2.SessionResponse:
        if not self.is_welcomed:
            self.is_welcomed = True
            welcome = agent_pb2.Welcome(heartbeat_interval=to_duration(50), lease=to_duration(9000))
            return agent_pb2.SessionResponse(welcome=welcome)
        await self.has_ended.wait()
        raise self.on_read

    async def write(self, message: agent_pb2.SessionRequest) -> None:
        if message.WhichOneof("message") == "heartbeat":
            self.has_ended.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)  # the reader is first, and its end cancels the writer
            raise self.on_write


class FakeUser:
    """An agent that only records the link's calls."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.heard: list[int | str | None] = []
        """Kinds of messages and confirmed times, in order."""
        self.clock_ms = 0

    def hello(self) -> agent_pb2.Hello:
        return agent_pb2.Hello()

    def unacknowledged(self) -> tuple[int, tuple[Report, ...]]:
        return 1, ()

    def epoch(self) -> int:
        return 0

    def now_ms(self) -> int:
        self.clock_ms += 1_000
        return self.clock_ms

    def holds_round(self) -> bool:
        return False

    def on_confirmed(self, sent_ms: int) -> None:
        self.heard.append(sent_ms)

    def on_message(self, message: agent_pb2.SessionResponse) -> None:
        self.heard.append(message.WhichOneof("message"))

    def on_disconnected(self, why: str, *, is_undecided: bool = False) -> None:
        self.ends.append(why)

    def on_dismissed(self, exit_code: int, text: str) -> None:
        self.ends.append(text)


@pytest.mark.parametrize("on_read", [BROKEN, MISUSED])
@pytest.mark.parametrize("on_write", [BROKEN, MISUSED, FINISHED])
async def test_end_seen_by_reader_and_writer_is_one_broken_stream(
    on_read: Exception, on_write: Exception
) -> None:
    """It never ends the agent, and the status with the reason is preferred."""
    link = Link("nowhere:1", "0" * 32, FakeUser())
    call: Any = FakeCall(on_read, on_write)
    with pytest.raises(BrokenStream) as caught:
        async with asyncio.timeout(60):
            await link._converse(call)

    if BROKEN in (on_read, on_write):
        assert str(caught.value) == "the connection broke"


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ("Cancelling all calls", "the coordinator shut down"),
        ("Stream removed (Socket closed)", "the connection broke"),
        ("recvmsg:Connection reset by peer", "the connection broke"),
        ("Received RST_STREAM with error code 2", "the connection broke"),
        ("sendmsg: Broken pipe (32)", "the connection broke"),
        ("Internal error from Core", "the connection broke"),
        ("ipv4:10.0.0.1:7: connect: Connection refused (111)", "connection refused: "),
        ("keepalive watchdog timeout", "the coordinator did not answer in time"),
        ("connect: Network is unreachable (101)", "the network does not reach the coordinator"),
        ("", "the connection broke"),
        ("this job is full", "this job is full"),
    ],
)
def test_words_of_grpc_are_replaced(details: str, reason: str) -> None:
    """A person reads what happened to the connection; the coordinator's own words are kept."""
    assert plain_reason(details, grpc.StatusCode.UNAVAILABLE).startswith(reason)


async def test_our_own_error_is_no_broken_stream() -> None:
    """An error that no stream raises ends the agent with its traceback."""
    link = Link("nowhere:1", "0" * 32, FakeUser())
    call: Any = FakeCall(BROKEN, ZeroDivisionError())
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(60):
            await link._converse(call)

    assert caught.value.subgroup(ZeroDivisionError) is not None


async def test_cancelled_link_ends_although_its_stream_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream that breaks during cancellation does not make the link reconnect."""
    user = FakeUser()
    link = Link("nowhere:1", "0" * 32, user)

    async def attempt(self: Link) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise BrokenStream("Socket closed") from None

    monkeypatch.setattr(Link, "_attempt", attempt)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(link.run())
        await asyncio.sleep(0)
        running.cancel()

    assert user.ends == []


async def test_link_waits_as_long_as_the_coordinator_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that is over a limit says when there may be room."""
    link = Link("nowhere:1", "0" * 32, FakeUser())
    pauses: list[float] = []

    async def attempt(self: Link) -> None:
        raise BrokenStream("the limit is reached", retry_s=40.0)

    async def sleep(duration_s: float) -> None:
        pauses.append(duration_s)
        raise asyncio.CancelledError

    monkeypatch.setattr(Link, "_attempt", attempt)
    monkeypatch.setattr("rallypoint.agent.session.link.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await link.run()

    assert 40.0 <= pauses[0] <= 50.0


@dataclass
class AnsweringCall:
    """A stream that answers the Hello, and of three heartbeats only the second, twice."""

    answers: asyncio.Queue[agent_pb2.SessionResponse] = field(default_factory=asyncio.Queue)

    async def read(self) -> agent_pb2.SessionResponse:
        return await self.answers.get()

    async def write(self, message: agent_pb2.SessionRequest) -> None:
        if message.HasField("hello"):
            welcome = agent_pb2.Welcome(heartbeat_interval=to_duration(50), lease=to_duration(9000))
            self.answers.put_nowait(agent_pb2.SessionResponse(welcome=welcome))
        elif message.heartbeat.number == 3:
            answer = agent_pb2.Acknowledgement(heartbeat=2)
            self.answers.put_nowait(agent_pb2.SessionResponse(acknowledgement=answer))
            self.answers.put_nowait(agent_pb2.SessionResponse(acknowledgement=answer))
            raise_at_end: Any = grpc.aio.EOF
            self.answers.put_nowait(raise_at_end)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK


async def test_answer_confirms_when_the_heartbeat_was_sent() -> None:
    """It has the sending time of its heartbeat and follows the message that it came with."""
    user = FakeUser()
    link = Link("nowhere:1", "0" * 32, user)
    call: Any = AnsweringCall()
    async with asyncio.timeout(60):
        await link._converse(call)

    # The clock gives 1 s for the Hello, then 2, 3 and 4 s for the heartbeats.
    assert ["welcome", 1_000, "acknowledgement", 3_000, "acknowledgement"] == user.heard


@dataclass
class ShorteningCall(AnsweringCall):
    """A stream whose heartbeats are an hour apart until the first one is answered."""

    async def write(self, message: agent_pb2.SessionRequest) -> None:
        hour, brief, lease = to_duration(3_600_000), to_duration(50), to_duration(9_000)
        if message.HasField("hello"):
            welcome = agent_pb2.Welcome(heartbeat_interval=hour, lease=hour)
            self.answers.put_nowait(agent_pb2.SessionResponse(welcome=welcome))
        elif message.heartbeat.number == 1:
            timing = agent_pb2.Acknowledgement(heartbeat_interval=brief, lease=lease)
            self.answers.put_nowait(agent_pb2.SessionResponse(acknowledgement=timing))
        else:
            raise_at_end: Any = grpc.aio.EOF
            self.answers.put_nowait(raise_at_end)


async def test_shorter_interval_counts_at_once() -> None:
    """With a shorter lease, the heartbeat that was planned before would be too late."""
    link = Link("nowhere:1", "0" * 32, FakeUser())
    call: Any = ShorteningCall()
    async with asyncio.timeout(60):
        await link._converse(call)


@dataclass
class SlowCall(AnsweringCall):
    """A stream whose Welcome takes longer than the agent's last known lease."""

    async def write(self, message: agent_pb2.SessionRequest) -> None:
        welcome = agent_pb2.Welcome(heartbeat_interval=to_duration(50), lease=to_duration(9000))
        answer: Any = agent_pb2.SessionResponse(welcome=welcome)
        if not message.HasField("hello"):
            answer = grpc.aio.EOF
        delay_s = 2 * BRIEF_LEASE_MS / 1000 if message.HasField("hello") else 0
        asyncio.get_running_loop().call_later(delay_s, self.answers.put_nowait, answer)


async def test_welcome_may_take_longer_than_a_short_lease() -> None:
    """A coordinator to which a whole fleet reconnects gets at least the default lease."""
    user = FakeUser()
    link = Link("nowhere:1", "0" * 32, user)
    link.exchange.lease_ms = BRIEF_LEASE_MS
    call: Any = SlowCall()
    async with asyncio.timeout(60):
        await link._converse(call)

    assert user.heard == ["welcome", 1_000]


@dataclass
class LeavingCall(AnsweringCall):
    """A stream that ends with a status after the Goodbye."""

    status: grpc.StatusCode = grpc.StatusCode.OK

    async def write(self, message: agent_pb2.SessionRequest) -> None:
        if message.HasField("goodbye"):
            farewell: Any = grpc.aio.EOF
            if self.status is grpc.StatusCode.OK:
                self.answers.put_nowait(agent_pb2.SessionResponse(acknowledged=1))
            self.answers.put_nowait(farewell)
        else:
            await super().write(message)

    async def code(self) -> grpc.StatusCode:
        return self.status

    async def details(self) -> str:
        return "this session counts as lost"

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    trailing_metadata = initial_metadata


class LeavingUser(FakeUser):
    """An agent whose only report is its Goodbye."""

    def unacknowledged(self) -> tuple[int, tuple[Report, ...]]:
        return 1, (GoodbyeReport(GoodbyeKind.SIGNAL, "SIGTERM"),)


@pytest.mark.parametrize(
    ("status", "attempts"),
    [(grpc.StatusCode.OK, 1), (grpc.StatusCode.ABORTED, 2)],
    ids=["accepted", "from an older coordinator"],
)
async def test_accepted_goodbye_ends_the_link(
    monkeypatch: pytest.MonkeyPatch, status: grpc.StatusCode, attempts: int
) -> None:
    """A new connection would join again. After any other end the link reconnects, as ever."""
    user, made = LeavingUser(), asyncio.Event()
    link = Link("127.0.0.1:1", "0" * 32, user)
    link.exchange.connection = -1  # the messages of these streams are for connection 0

    async def attempt(self: Link) -> None:
        if self.exchange.connection == 1:
            made.set()
            await asyncio.Event().wait()
        call: Any = LeavingCall(status=status)
        await self._converse(call)

    monkeypatch.setattr(Link, "_attempt", attempt)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(link.run())
        reconnected = tasks.create_task(made.wait())
        await asyncio.wait((running, reconnected), return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        reconnected.cancel()

    assert attempts == link.exchange.connection + 1
    assert 1 == len(user.ends)
    if status is grpc.StatusCode.OK:
        assert None in user.heard  # the acknowledgement
