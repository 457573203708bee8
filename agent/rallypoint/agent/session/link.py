"""The link to the coordinator: it connects, sends Hello, reports and heartbeats, and reconnects.

Each attempt opens a fresh channel and gets the next connection number; messages for another one are
ignored. If no message arrives for a whole lease, the link gives up the connection, because a stream
does not break when its peer vanishes.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import Message

from rallypoint.agent.core.reports import Report
from rallypoint.agent.session.reasons import plain_reason
from rallypoint.agent.session.translate import report_message
from rallypoint.base.exit_codes import EXIT_FAILED, EXIT_USAGE
from rallypoint.base.log import get_logger
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.channel import client_options
from rallypoint.wire.durations import to_ms

log = get_logger()

CONNECT_S_MAX = 1.0
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 2.0
"""Longest pause between attempts; a new coordinator waits longer than this for its agents."""
LOOK_UP_S_MAX = 1.0
"""Longest look-up of a coordinator's name, which shows whether the name is the problem."""
FAREWELL_S_MAX = 1.0
"""How long the last reports may take to be acknowledged when the agent ends."""
BEATS_MAX = 64
"""Unanswered heartbeats whose time is kept; older ones count as not confirmed."""
DEFAULT_LEASE_S = 5.0
"""The lease until a Welcome sets one, and the shortest wait for a Welcome: a coordinator to which a
whole fleet reconnects may need longer than the lease of one job."""

_Call = Any
"""grpc.aio.StreamStreamCall: its annotations do not cover read and write."""


class LinkUser(Protocol):
    """The owner of a link: provides messages to send and receives messages, in the event loop."""

    def hello(self) -> agent_pb2.Hello:
        """Return a Hello with everything that the node holds now."""

    def unacknowledged(self) -> tuple[int, tuple[Report, ...]]:
        """Return the sequence of the first unacknowledged report, and all of them, oldest first."""

    def epoch(self) -> int:
        """Return the highest epoch seen so far."""

    def now_ms(self) -> int:
        """Return the agent's clock."""

    def holds_round(self) -> bool:
        """Return whether workers of a round run here, or have not been reported yet."""

    def on_confirmed(self, sent_ms: int) -> None:
        """Note that the coordinator has received a message sent at this time of `now_ms`."""

    def on_message(self, message: agent_pb2.SessionResponse) -> None:
        """Apply a message of the current connection."""

    def on_disconnected(self, why: str) -> None:
        """Note that there is no session."""

    def on_dismissed(self, exit_code: int, text: str) -> None:
        """Note that the coordinator refuses this agent for good."""


class Unreachable(Exception):
    """An attempt to connect failed."""


class BrokenStream(Exception):
    """The stream ended."""


class Link:
    """One agent's link to the coordinator."""

    def __init__(self, target: str, session_id: str, user: LinkUser) -> None:
        """Begin without a connection.

        Args:
            target: host:port of the coordinator.
            session_id: 32 hexadecimal digits, the agent's incarnation.
            user: provides messages to send and receives messages.
        """
        self.target = target
        self.session_id = session_id
        self.user = user
        self.connection = 0
        """Number of the latest attempt."""
        self._resume_token = ""
        """Of the last Welcome."""
        self._wake = asyncio.Event()
        self._interval_s = 1.0
        self._lease_s = DEFAULT_LEASE_S
        self._welcomed = False
        self._has_left = False
        """A Goodbye was sent on the current connection."""
        self._is_name_known = False
        """The coordinator was reached once, or its name was looked up: no further look-up."""
        self._refused = ""
        """The reason of the latest refused message that was logged."""
        self._beat_at = 0.0
        """When the next heartbeat is due, in the loop's time; 0 at the start of a connection."""
        self._hello_ms = 0
        """When the Hello of the latest connection was sent."""
        self._beats: deque[tuple[int, int]] = deque(maxlen=BEATS_MAX)
        """Number and sending time of each unanswered heartbeat, oldest first."""

    def wake(self) -> None:
        """Send the unsent reports."""
        self._wake.set()

    async def run(self) -> None:
        """Stay connected until cancelled, dismissed, or gone with a Goodbye."""
        backoff_s = BACKOFF_S_MIN
        task = asyncio.current_task()
        while True:
            self._welcomed = self._has_left = False
            self.connection += 1
            try:
                await self._attempt()
                why = "the coordinator closed the stream"
                if self._has_left:
                    self.user.on_disconnected(why)
                    return  # the coordinator has accepted the Goodbye
            except (Unreachable, BrokenStream) as error:
                why = str(error)
            except _Misunderstood as misunderstood:
                why = misunderstood.text
                if not self.user.holds_round():
                    self.user.on_dismissed(misunderstood.exit_code, why)
                    return
                self._note_refusal(why)
                self._welcomed = False  # for the back-off: the next attempt may end in the same way
            except _Dismissed as dismissed:
                self.user.on_dismissed(dismissed.exit_code, dismissed.text)
                return
            backoff_s = BACKOFF_S_MIN if self._welcomed else backoff_s
            if task is not None and task.cancelling():
                return  # a stream that breaks while it is cancelled would hide the cancellation
            self.user.on_disconnected(why + await self._look_up())
            # Equal jitter: half of the pause is random, so a thousand agents do not return at once.
            await asyncio.sleep(random.uniform(backoff_s / 2, backoff_s))
            backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)

    def _note_refusal(self, why: str) -> None:
        """Log that the coordinator does not understand a message, once for each reason."""
        if why != self._refused:
            self._refused = why
            log.error("message_refused", why=why, then="workers keep running; retrying")

    async def _look_up(self) -> str:
        """Return why the coordinator's name cannot be resolved, or ""; looks it up only once.

        There is no look-up after the coordinator was reached: it would delay a reconnection.
        """
        if self._is_name_known:
            return ""
        self._is_name_known = True
        host = self.target.rpartition(":")[0].strip("[]")
        try:
            async with asyncio.timeout(LOOK_UP_S_MAX):
                await asyncio.get_running_loop().getaddrinfo(host, None)
        except socket.gaierror as error:
            return f"; cannot resolve {host}: {error.strerror}"
        except (TimeoutError, UnicodeError):
            return f"; cannot resolve {host} within {LOOK_UP_S_MAX:g} s"
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
        """Send Hello, then read and write until the stream ends."""
        self._beats.clear()
        self._beat_at = 0.0
        self._hello_ms = self.user.now_ms()
        try:
            hello = self.user.hello()
            hello.resume_token = self._resume_token
            await self._write(call, agent_pb2.SessionRequest(hello=hello))
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._report(call))
                await self._read(call)
                writer.cancel()
        except (grpc.aio.AioRpcError, *_STREAM_ERRORS) as error:
            raise _translate(error) from None
        except ExceptionGroup as group:
            # Reader and writer may both see the end of the stream, as different exceptions.
            known, unknown = group.split((grpc.aio.AioRpcError, *_STREAM_ERRORS))
            if unknown is not None or known is None:
                raise
            status = known.subgroup(grpc.aio.AioRpcError)  # prefer it: it carries the reason
            raise _translate(_first(status or known)) from None

    async def _read(self, call: _Call) -> None:
        while True:
            lease_s = self._lease_s if self._welcomed else max(self._lease_s, DEFAULT_LEASE_S)
            try:
                async with asyncio.timeout(lease_s):
                    message = await call.read()
            except TimeoutError:
                raise BrokenStream(f"no message from the coordinator for {lease_s:g} s") from None
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
                self._resume_token = message.welcome.resume_token
                self._set_timing(message.welcome)
            elif message.acknowledgement.HasField("heartbeat_interval"):
                self._set_timing(message.acknowledgement)
            self.user.on_message(message)
            # Only after the message: before it, an outdated desired state could still start
            # workers.
            if message.HasField("welcome"):
                self.user.on_confirmed(self._hello_ms)
            self._confirm_heartbeats(message.acknowledgement.heartbeat)

    def _confirm_heartbeats(self, number: int) -> None:
        """Confirm the latest heartbeat with at most this number."""
        sent_ms: int | None = None
        while self._beats and self._beats[0][0] <= number:
            _, sent_ms = self._beats.popleft()
        if sent_ms is not None:
            self.user.on_confirmed(sent_ms)

    def _set_timing(self, timing: agent_pb2.Welcome | agent_pb2.Acknowledgement) -> None:
        self._interval_s = max(0.05, to_ms(timing.heartbeat_interval) / 1000)
        self._lease_s = max(0.2, to_ms(timing.lease) / 1000)
        # A shorter lease counts at once: the next heartbeat must arrive within it.
        self._beat_at = min(self._beat_at, asyncio.get_running_loop().time() + self._interval_s)
        self._wake.set()

    async def _report(self, call: _Call) -> None:
        """Send reports as they arise, and heartbeats in between."""
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
                self._has_left = message.HasField("goodbye")
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


class _Misunderstood(_Dismissed):
    """The coordinator refuses a message as invalid: one of the two has a bug, or is too old."""


_FINAL: dict[type[Message], int] = {
    details_pb2.SpecMismatch: EXIT_USAGE,
    details_pb2.NodeNameInUse: EXIT_USAGE,
    details_pb2.NodeRankInUse: EXIT_USAGE,
    details_pb2.AddressMismatch: EXIT_USAGE,
    details_pb2.ProgramMismatch: EXIT_USAGE,
    details_pb2.ProtocolMismatch: EXIT_USAGE,
    details_pb2.ForeignRound: EXIT_FAILED,
    details_pb2.LimitReached: EXIT_FAILED,
}
"""Refusals that another attempt cannot change, and the agent's exit code for each."""


_STREAM_ERRORS = (
    grpc.aio.UsageError,
    asyncio.InvalidStateError,  # a write after the end of the call
    TimeoutError,
    BrokenStream,
)


def _translate(error: Exception) -> Exception:
    """Return the exception that the end of the stream means for the agent."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return BrokenStream(str(error) or "the stream broke")
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return _Misunderstood(EXIT_USAGE, f"the coordinator refused: {error.details()}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        # Another server or a proxy may answer while the coordinator is away.
        return _Misunderstood(EXIT_USAGE, "no rallypoint coordinator listens at this address")
    if error.trailing_metadata():
        # Imported here: most agents never see a refusal.
        from rallypoint.wire.errors import unpack_detail

        detail = unpack_detail(tuple(error.trailing_metadata()))
        exit_code = _FINAL.get(type(detail)) if detail is not None else None
        if isinstance(detail, details_pb2.LimitReached) and detail.HasField("retry_after"):
            exit_code = None
        if (
            isinstance(detail, details_pb2.StaleSender)
            and detail.kind == details_pb2.STALE_KIND_RUN
        ):
            exit_code = EXIT_FAILED
        if exit_code is not None:
            return _Dismissed(exit_code, error.details() or "refused")
    return BrokenStream(plain_reason(error.details() or "", error.code()))


def _first(group: BaseExceptionGroup[Any]) -> Any:
    """Return the first exception of a group, however nested."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
