"""The link to the coordinator: it connects, sends Hello, reports and heartbeats, and reconnects.

Each attempt opens a fresh channel and gets the next connection number; messages for another one are
ignored. With several coordinators, each attempt may be with another one. If no message arrives for
a whole lease, the link gives up the connection, because a stream does not break when its peer
vanishes.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Protocol

import grpc
import grpc.aio
from msgspec import Struct

from rallypoint.agent.core.reports import Report
from rallypoint.agent.session.connector import Connector, CoordinatorStarter
from rallypoint.agent.session.dismissal import Dismissed
from rallypoint.agent.session.endings import (
    BrokenStream,
    Denied,
    Misunderstood,
    Redirected,
    Taken,
    read_ending,
)
from rallypoint.agent.session.exchange import Exchange
from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.base.log import get_logger
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import evidence_service_pb2 as evidence_pb2
from rallypoint.v1 import evidence_service_pb2_grpc as evidence_grpc
from rallypoint.wire.access import PLAIN, Access, AccessFailed
from rallypoint.wire.connecting import Unreachable
from rallypoint.wire.coordinators import Coordinators
from rallypoint.wire.credentials import Metadata

log = get_logger()

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 2.0
"""Longest pause between attempts; a new coordinator waits longer than this for its agents."""
TAKEN_S = 1.6
"""After this a second refusal because of a node with the same name or rank is final, in seconds.

The coordinator names a node so that it has heard within 1.5 s: it was heard since the first one.
"""
FAREWELL_S_MAX = 1.0
"""How long the last reports may take to be acknowledged when the agent ends."""

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

    def on_disconnected(self, why: str, *, is_undecided: bool = False) -> None:
        """Note that there is no session; `is_undecided`: no coordinator can decide anything."""

    def on_dismissed(self, exit_code: int, text: str) -> None:
        """Note that the coordinator refuses this agent for good."""


class _End(Struct):
    """How a connection ended that another one follows."""

    why: str
    retry_s: float = 0.0
    """How long the coordinator asks the agent to wait."""
    is_understood: bool = True
    """False when the next attempt may end in the same way."""
    moves: bool = False
    """Another coordinator is more likely to answer."""
    is_undecided: bool = False
    """No coordinator can decide anything, and `why` says what keeps it."""
    is_run_ending: bool = False
    """The run before has to end first, as `why` says."""
    owner: str = ""
    """`host:port` of the coordinator that owns the job; empty: no other one, or unknown."""


class Link:
    """One agent's link to the coordinator."""

    def __init__(
        self,
        targets: str,
        session_id: str,
        user: LinkUser,
        access: Access = PLAIN,
        starter: CoordinatorStarter | None = None,
    ) -> None:
        """Begin without a connection.

        Args:
            targets: host:port of the coordinator, or of several with commas in between.
            session_id: 32 hexadecimal digits, the agent's incarnation.
            user: provides messages to send and receives messages.
            access: how the agent proves who it is.
            starter: prepares each attempt to connect; None: there is nothing to prepare.
        """
        self._connector = Connector(access, starter)
        self._channel: grpc.aio.Channel | None = None
        """Of the connection."""
        self._metadata: Metadata = ()
        """Of the latest session."""
        self._coordinators = Coordinators(targets.split(","))
        self.user = user
        self.exchange = Exchange(session_id)
        self._wake = asyncio.Event()
        self._sent_to = ""
        """The owner of the job that was logged last, since the last Welcome."""
        self._sent_why = ""
        """Why the agent was sent there."""
        self._taken_s: float | None = None
        """When another node was first named as the one that has this one's name or rank."""
        self._refused = ""
        """Why the coordinator has refused the agent, or a message, as it was logged last."""
        self.is_answered = False
        """A coordinator has answered, if only to say why it cannot serve, or which one does; or it
        is known better why none can be reached."""
        self.run_ending = ""
        """The answer that the run before has to end first; empty: it has ended."""
        self._beat_at = 0.0
        """When the next heartbeat is due, in the loop's time; 0 at the start of a connection."""

    @property
    def target(self) -> str:
        """Return host:port of the coordinator of this connection, or of the next attempt."""
        return self._coordinators.target

    @property
    def targets(self) -> str:
        """Return all coordinators with commas in between, the one of this connection first."""
        return ",".join(self._coordinators.order)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return what is known of the coordinator's host: the connection is to one of them."""
        return self._connector.addresses

    async def report_evidence(self, report: evidence_pb2.ReportEvidenceRequest) -> None:
        """Report what workers do to the coordinator of the session, on a separate call.

        Raises:
            grpc.aio.AioRpcError: it did not take the report.
        """
        if self._channel is not None:  # else the request has died with its connection
            stub = evidence_grpc.EvidenceServiceStub(self._channel)
            await stub.ReportEvidence(report, metadata=self._metadata)

    def wake(self) -> None:
        """Send the unsent reports."""
        self._wake.set()

    async def run(self) -> None:
        """Stay connected until cancelled, dismissed, or gone with a Goodbye."""
        backoff_s = BACKOFF_S_MIN
        task = asyncio.current_task()
        while True:
            self.exchange.begin()
            target = self.target
            end = await self._connection()
            if end is None:
                return
            self.run_ending = end.why if end.is_run_ending else ""
            if end.is_understood and self.exchange.is_welcome:
                backoff_s = BACKOFF_S_MIN
                self._coordinators.welcomed()
                self._sent_to = ""
            if task is not None and task.cancelling():
                return  # a stream that breaks while it is cancelled would hide the cancellation
            is_at_once = self._move(end)
            if is_at_once and end.owner:
                continue  # the agent has learned where to go, and has lost nothing
            why = end.why
            if end.moves and target == self._sent_to:
                self.is_answered = True
                why += f": {self._sent_why}; if it runs, correct its --advertise"
            self.user.on_disconnected(why, is_undecided=end.is_undecided)
            if not is_at_once:
                await asyncio.sleep(_draw_pause(backoff_s, end.retry_s))
                backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)

    async def _connection(self) -> _End | None:
        """Connect once; return how that ended, or None when no connection follows."""
        self.is_answered = False
        try:
            await self._attempt()
        except Redirected as redirected:
            self.is_answered = True
            return _End(str(redirected), redirected.retry_s, owner=redirected.address)
        except Unreachable as error:
            self.is_answered = error.is_answer
            return _End(str(error), moves=True)
        except BrokenStream as broken:
            is_refused = broken.retry_s > 0 and not self.exchange.is_welcome
            self.is_answered = broken.is_undecided or is_refused
            moves = broken.is_silent or not self.exchange.is_welcome
            return _End(
                str(broken),
                broken.retry_s,
                moves=moves,
                is_undecided=broken.is_undecided,
                is_run_ending=broken.is_run_ending,
            )
        except Denied as denied:
            return await self._on_denied(denied)
        except AccessFailed as failed:  # files of no use, and none from before
            self.user.on_dismissed(EXIT_USAGE, str(failed))
            return None
        except Dismissed as dismissed:
            return self._on_dismissed(dismissed)
        why = "the coordinator closed the stream"
        if self.exchange.has_left:
            self.user.on_disconnected(why)
            return None  # the coordinator has accepted the Goodbye
        return _End(why)

    async def _on_denied(self, denied: Denied) -> _End | None:
        """Try again with a newer token, or while workers run; else end."""
        if await self._connector.has_newer(self._metadata):
            return _End(denied.text, is_understood=False)
        if not self.user.holds_round():
            self.user.on_dismissed(denied.exit_code, denied.text)
            return None
        self.is_answered = True
        if denied.text != self._refused:
            self._refused = denied.text
            log.error("access_refused", why=denied.text, then="workers keep running; retrying")
        return _End(denied.text, is_understood=False)

    def _on_dismissed(self, dismissed: Dismissed) -> _End | None:
        """End; but keep workers through a misunderstanding, and ask twice for a name."""
        holds_round = self.user.holds_round()
        if isinstance(dismissed, Misunderstood) and holds_round:
            self._note_refusal(dismissed.text)
            return _End(dismissed.text, is_understood=False)
        if isinstance(dismissed, Taken) and not holds_round:
            now_s = asyncio.get_running_loop().time()
            self._taken_s = now_s if self._taken_s is None else self._taken_s
            if now_s - self._taken_s < TAKEN_S:
                self.is_answered = True
                return _End(dismissed.text, TAKEN_S)
        self.user.on_dismissed(dismissed.exit_code, dismissed.text)
        return None

    def _move(self, end: _End) -> bool:
        """Choose the next coordinator; return whether the agent tries it without a pause."""
        if end.owner:
            if end.owner != self._sent_to:
                log.info("job_owned_elsewhere", asked=self.target, owner=end.owner)
            self._sent_to, self._sent_why = end.owner, end.why
            return self._coordinators.redirected(end.owner)
        return end.moves and self._coordinators.failed() and not end.retry_s

    def _note_refusal(self, why: str) -> None:
        """Log that the coordinator does not understand a message, once for each reason."""
        if why != self._refused:
            self._refused = why
            log.error("message_refused", why=why, then="workers keep running; retrying")

    async def _attempt(self) -> None:
        async with await self._connector.open(self.target) as channel:
            await self._connector.connect(channel, self.target)
            self._channel, self._metadata = channel, self._connector.metadata()
            call: _Call = agent_grpc.AgentServiceStub(channel).Session(metadata=self._metadata)
            try:
                await self._converse(call)
            finally:
                self._channel = None
                call.cancel()

    async def _converse(self, call: _Call) -> None:
        """Send Hello, then read and write until the stream ends."""
        self._beat_at = 0.0
        now_ms = self.user.now_ms()
        try:
            await self._write(
                call, self.exchange.hello(self.user.hello(), self.user.epoch(), now_ms)
            )
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._report(call))
                await self._read(call)
                writer.cancel()
        except (grpc.aio.AioRpcError, *_STREAM_ERRORS) as error:
            raise _translate(error, self.target) from None
        except ExceptionGroup as group:
            # Reader and writer may both see the end of the stream, as different exceptions.
            known, unknown = group.split((grpc.aio.AioRpcError, *_STREAM_ERRORS))
            if unknown is not None or known is None:
                raise
            status = known.subgroup(grpc.aio.AioRpcError)  # prefer it: it carries the reason
            raise _translate(_first(status or known), self.target) from None

    async def _read(self, call: _Call) -> None:
        while True:
            lease_s = self.exchange.silence_ms_max / 1000
            try:
                async with asyncio.timeout(lease_s):
                    message = await call.read()
            except TimeoutError:
                text = f"no message from the coordinator for {lease_s:g} s"
                raise BrokenStream(text, is_silent=True) from None
            if message is grpc.aio.EOF:
                code = await call.code()
                if code is not grpc.StatusCode.OK:
                    details = await call.details()
                    trailing = await call.trailing_metadata()
                    raise grpc.aio.AioRpcError(
                        code, await call.initial_metadata(), trailing, details
                    )
                return
            if not self.exchange.accept(message, self.user.epoch()):
                continue
            if message.HasField("welcome"):
                self._connector.welcomed()
            if self.exchange.take_timing(message):
                self._beat_sooner()
            self.user.on_message(message)
            for sent_ms in self.exchange.confirmed(message):
                self.user.on_confirmed(sent_ms)

    def _beat_sooner(self) -> None:
        """Let a shorter lease count at once: the next heartbeat must arrive within it."""
        interval_s = self.exchange.interval_ms / 1000
        self._beat_at = min(self._beat_at, asyncio.get_running_loop().time() + interval_s)
        self._wake.set()

    async def _report(self, call: _Call) -> None:
        """Send reports as they arise, and heartbeats in between."""
        loop, exchange = asyncio.get_running_loop(), self.exchange
        while True:
            if exchange.is_welcome:
                await self._send_reports(call)
                if loop.time() >= self._beat_at:
                    beat = exchange.heartbeat(self.user.epoch(), self.user.now_ms())
                    await self._write(call, beat)
                    self._beat_at = loop.time() + exchange.interval_ms / 1000
            try:
                async with asyncio.timeout_at(self._beat_at if exchange.is_welcome else None):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def _send_reports(self, call: _Call) -> None:
        """Send every report that was not sent on this connection."""
        exchange, user = self.exchange, self.user
        for sequence, report in exchange.unsent(*user.unacknowledged()):
            await self._write(call, exchange.report(sequence, report, user.epoch(), user.now_ms()))
            exchange.sent(sequence)

    async def _write(self, call: _Call, message: agent_pb2.SessionRequest) -> None:
        async with asyncio.timeout(self.exchange.lease_ms / 1000):
            await call.write(message)


_STREAM_ERRORS = (
    grpc.aio.UsageError,
    asyncio.InvalidStateError,  # a write after the end of the call
    TimeoutError,
    BrokenStream,
)


def _translate(error: Exception, address: str) -> Exception:
    """Return the exception that the end of the stream means for the agent."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return BrokenStream(str(error) or "the stream broke")
    text = error.details() or ""
    return read_ending(error.code(), text, error.trailing_metadata(), address)


def _first(group: BaseExceptionGroup[Any]) -> Any:
    """Return the first exception of a group, however nested."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _draw_pause(backoff_s: float, retry_s: float) -> float:
    """Return how long to wait before the next attempt, in seconds.

    Equal jitter: half of the pause is random, so a thousand agents do not return at once.

    Args:
        backoff_s: the longest pause of our own.
        retry_s: the shortest that the coordinator asks for; 0: it asks for none.
    """
    pause_s = random.uniform(backoff_s / 2, backoff_s)
    return max(pause_s, random.uniform(retry_s, 1.25 * retry_s)) if retry_s else pause_s
