"""The agent's line to the coordinator: connects, says Hello, reports, and connects again.

Each attempt is a fresh channel with a connection number of its own; whatever arrives for another
one is ignored. A connection that brought nothing for a whole lease is given up, because a peer that
is gone without a word breaks no stream.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import Message

from rallypoint.agent.core.model import Report
from rallypoint.agent.translate import report_message
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.channel import client_options
from rallypoint.wire.durations import to_ms
from rallypoint.wire.log import get_logger

log = get_logger()

CONNECT_S_MAX = 1.0
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 2.0
"""Longest pause between attempts; a coordinator that starts listens longer than this."""
LOOK_UP_S_MAX = 1.0
"""How long a coordinator's name is looked up, to say whether that is why it cannot be reached."""
FAREWELL_S_MAX = 1.0
"""How long the last reports may take to be acknowledged when the agent ends."""
BEATS_MAX = 64
"""Heartbeats without an answer whose time is kept; of more, the oldest are taken for unheard."""
DEFAULT_LEASE_S = 5.0
"""Until a Welcome has said otherwise; and the least to wait for one, because a job's own lease may
be shorter than what a coordinator needs to which a whole fleet comes back."""
USAGE_EXIT_CODE = 2
FAILED_EXIT_CODE = 1

_Call = Any
"""grpc.aio.StreamStreamCall: its annotations do not cover read and write."""


class LinkUser(Protocol):
    """Whoever owns what is said over the link; every call is made in the event loop."""

    def hello(self) -> agent_pb2.Hello:
        """Return a Hello with everything that the node holds now."""

    def unacknowledged(self) -> tuple[int, tuple[Report, ...]]:
        """Return the sequence of the first unacknowledged report, and all of them, oldest first."""

    def epoch(self) -> int:
        """Return the highest epoch heard so far."""

    def now_ms(self) -> int:
        """Return the agent's clock."""

    def confirmed(self, sent_ms: int) -> None:
        """Note that the coordinator has heard what was sent at this time of `now_ms`."""

    def came(self, message: agent_pb2.SessionResponse) -> None:
        """Take a message of the current connection."""

    def disconnected(self, why: str) -> None:
        """Note that there is no session."""

    def dismissed(self, exit_code: int, text: str) -> None:
        """Note that the coordinator refuses this agent for good."""


class Unreachable(Exception):
    """An attempt to connect failed."""


class BrokenStream(Exception):
    """The stream ended."""


@dataclass(slots=True)
class Link:
    """One agent's line to the coordinator."""

    target: str
    """host:port of the coordinator."""
    session_id: str
    user: LinkUser
    connection: int = 0
    """Number of the latest attempt."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _interval_s: float = 1.0
    _lease_s: float = DEFAULT_LEASE_S
    _welcomed: bool = False
    _is_name_known: bool = False
    """The coordinator was reached once, or its name was looked up: it is not looked up again."""
    _beat_at: float = 0.0
    """When the next heartbeat is due, in the loop's time; long ago for a connection's first."""
    _hello_ms: int = 0
    """When the Hello of the latest connection was sent."""
    _beats: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=BEATS_MAX))
    """Number and time of sending of the heartbeats that were not answered yet, oldest first."""

    def wake(self) -> None:
        """Send what there is to report."""
        self._wake.set()

    async def run(self) -> None:
        """Stay connected until cancelled or dismissed."""
        backoff_s = BACKOFF_S_MIN
        task = asyncio.current_task()
        while True:
            self._welcomed = False
            self.connection += 1
            try:
                await self._attempt()
                why = "the coordinator closed the stream"
            except (Unreachable, BrokenStream) as error:
                why = str(error)
            except _Dismissed as dismissed:
                self.user.dismissed(dismissed.exit_code, dismissed.text)
                return
            backoff_s = BACKOFF_S_MIN if self._welcomed else backoff_s
            if task is not None and task.cancelling():
                return  # a stream that breaks while it is cancelled would hide the cancellation
            self.user.disconnected(why + await self._look_up())
            # Full jitter below the bound, so that a thousand agents do not come back as one.
            await asyncio.sleep(random.uniform(backoff_s / 2, backoff_s))
            backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)

    async def _look_up(self) -> str:
        """Return what is wrong with the name of a coordinator that was never reached; asked once.

        Later it would cost what is dearest then: the time to come back.
        """
        if self._is_name_known:
            return ""
        self._is_name_known = True
        host = self.target.rpartition(":")[0].strip("[]")
        try:
            async with asyncio.timeout(LOOK_UP_S_MAX):
                await asyncio.get_running_loop().getaddrinfo(host, None)
        except socket.gaierror as error:
            return f"; the look-up of {host} failed: {error.strerror}"
        except (TimeoutError, UnicodeError):
            return f"; the look-up of {host} gave nothing within {LOOK_UP_S_MAX:g} s"
        return ""

    async def _attempt(self) -> None:
        async with grpc.aio.insecure_channel(self.target, options=client_options()) as channel:
            await self._connect(channel)
            call: _Call = agent_grpc.AgentServiceStub(channel).Session()
            try:
                await self._converse(call)
            finally:
                call.cancel()

    async def _connect(self, channel: grpc.aio.Channel) -> None:
        """Wait until the channel is ready; unlike `channel_ready`, fail at the first failure."""
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                state = channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        raise Unreachable(f"cannot connect to {self.target}")
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            text = f"no connection to {self.target} within {CONNECT_S_MAX:g} s"
            raise Unreachable(text) from None

    async def _converse(self, call: _Call) -> None:
        """Say Hello, then read and write until the stream ends."""
        self._beats.clear()
        self._beat_at = 0.0
        self._hello_ms = self.user.now_ms()
        try:
            await self._write(call, agent_pb2.SessionRequest(hello=self.user.hello()))
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._report(call))
                await self._read(call)
                writer.cancel()
        except (grpc.aio.AioRpcError, *_STREAM_ERRORS) as error:
            raise _translate(error) from None
        except ExceptionGroup as group:
            # Reader and writer may both meet the end of the stream, each in its own words.
            known, unknown = group.split((grpc.aio.AioRpcError, *_STREAM_ERRORS))
            if unknown is not None or known is None:
                raise
            status = known.subgroup(grpc.aio.AioRpcError)  # says why, where it is there
            raise _translate(_first(status or known)) from None

    async def _read(self, call: _Call) -> None:
        while True:
            lease_s = self._lease_s if self._welcomed else max(self._lease_s, DEFAULT_LEASE_S)
            try:
                async with asyncio.timeout(lease_s):
                    message = await call.read()
            except TimeoutError:
                raise BrokenStream(f"the coordinator said nothing for {lease_s:g} s") from None
            if message is grpc.aio.EOF:
                code = await call.code()
                if code is not grpc.StatusCode.OK:
                    details = await call.details()
                    trailing = await call.trailing_metadata()
                    raise grpc.aio.AioRpcError(
                        code, await call.initial_metadata(), trailing, details
                    )
                return
            if message.connection != self.connection or message.epoch < self.user.epoch():
                continue  # for an older connection, or from a coordinator that was replaced
            if message.HasField("welcome"):
                self._welcomed = self._is_name_known = True
                self._take_timing(message.welcome)
            elif message.acknowledgement.HasField("heartbeat_interval"):
                self._take_timing(message.acknowledgement)
            self.user.came(message)
            # Only now: what was desired before may be long over, and must not be begun with.
            if message.HasField("welcome"):
                self.user.confirmed(self._hello_ms)
            self._take_answer(message.acknowledgement.heartbeat)

    def _take_answer(self, number: int) -> None:
        """Confirm the last heartbeat that the coordinator has heard, up to this number."""
        sent_ms: int | None = None
        while self._beats and self._beats[0][0] <= number:
            _, sent_ms = self._beats.popleft()
        if sent_ms is not None:
            self.user.confirmed(sent_ms)

    def _take_timing(self, told: agent_pb2.Welcome | agent_pb2.Acknowledgement) -> None:
        self._interval_s = max(0.05, to_ms(told.heartbeat_interval) / 1000)
        self._lease_s = max(0.2, to_ms(told.lease) / 1000)
        # A lease that has become shorter counts at once: the next heartbeat must be in time for it.
        self._beat_at = min(self._beat_at, asyncio.get_running_loop().time() + self._interval_s)
        self._wake.set()

    async def _report(self, call: _Call) -> None:
        """Send reports as they come, and heartbeats in between."""
        sent, heartbeat = 0, 0
        loop = asyncio.get_running_loop()
        while True:
            if self._welcomed:
                sent = await self._send_reports(call, sent)
                if loop.time() >= self._beat_at:
                    heartbeat += 1
                    self._beats.append((heartbeat, self.user.now_ms()))
                    beat = agent_pb2.Heartbeat(number=heartbeat)
                    await self._write(call, agent_pb2.SessionRequest(heartbeat=beat))
                    self._beat_at = loop.time() + self._interval_s
            try:
                async with asyncio.timeout_at(self._beat_at if self._welcomed else None):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def _send_reports(self, call: _Call, sent: int) -> int:
        """Send every report after number `sent`; return the number of the last one."""
        first, reports = self.user.unacknowledged()
        for sequence, report in enumerate(reports, first):
            if sequence > sent:
                message = report_message(report, self.user.now_ms())
                message.sequence = sequence
                await self._write(call, message)
                sent = sequence
        return sent

    async def _write(self, call: _Call, message: agent_pb2.SessionRequest) -> None:
        message.session_id = self.session_id
        message.connection = self.connection
        message.epoch = self.user.epoch()
        async with asyncio.timeout(self._lease_s):
            await call.write(message)


class _Dismissed(Exception):
    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.text = text


_FINAL: dict[type[Message], int] = {
    details_pb2.SpecMismatch: USAGE_EXIT_CODE,
    details_pb2.NodeNameInUse: USAGE_EXIT_CODE,
    details_pb2.NodeRankInUse: USAGE_EXIT_CODE,
    details_pb2.AddressMismatch: USAGE_EXIT_CODE,
    details_pb2.ProtocolMismatch: USAGE_EXIT_CODE,
    details_pb2.ForeignRound: FAILED_EXIT_CODE,
    details_pb2.LimitReached: FAILED_EXIT_CODE,
}
"""Details that no further attempt would change, and the exit code that each means."""


_STREAM_ERRORS = (
    grpc.aio.UsageError,
    asyncio.InvalidStateError,  # a write after the end of the call
    TimeoutError,
    BrokenStream,
)


def _translate(error: Exception) -> Exception:
    """Return what the end of the stream means for the agent."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return BrokenStream(str(error) or "the stream broke")
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return _Dismissed(USAGE_EXIT_CODE, f"the coordinator refused: {error.details()}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return _Dismissed(USAGE_EXIT_CODE, "this address is not a rallypoint coordinator's")
    if error.trailing_metadata():
        # Imported here: most agents never see a refusal.
        from rallypoint.wire.errors import unpack_detail

        detail = unpack_detail(tuple(error.trailing_metadata()))
        exit_code = _FINAL.get(type(detail)) if detail is not None else None
        if isinstance(detail, details_pb2.StaleSender) and detail.what == "run":
            exit_code = FAILED_EXIT_CODE
        if exit_code is not None:
            return _Dismissed(exit_code, error.details() or "refused")
    return BrokenStream(error.details() or str(error.code()))


def _first(group: BaseExceptionGroup[Any]) -> Any:
    """Return the first exception of a group, however nested."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
