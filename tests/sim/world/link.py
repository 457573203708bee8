"""The agent's link to the coordinator: `session/link.py` on virtual time.

What it says, and which answers count, is decided by the real `Exchange`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.session.dismissal import Dismissed
from rallypoint.agent.session.endings import Misunderstood
from rallypoint.agent.session.exchange import Exchange
from rallypoint.agent.session.link import BACKOFF_S_MAX, BACKOFF_S_MIN
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from sim.rules.rules import Violation
from sim.world.clock import Timer
from sim.world.network import Stream
from sim.world.wire import Hangup, ending_of

if TYPE_CHECKING:
    from sim.world.node import Agent

BACKOFF_MS_MIN = int(BACKOFF_S_MIN * 1000)
BACKOFF_MS_MAX = int(BACKOFF_S_MAX * 1000)


class Link:
    """Connects, sends Hello and reports, and reconnects."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.world = agent.world
        self.exchange = Exchange(agent.session)
        self.stream: Stream | None = None
        self.is_closed = False
        self._backoff_ms = BACKOFF_MS_MIN
        self._beat: Timer | None = None
        self._beat_at_ms = 0
        self._silence: Timer | None = None
        self._is_waking = False

    @property
    def is_welcome(self) -> bool:
        """True while there is a session."""
        return self.stream is not None and self.exchange.is_welcome

    def attempt(self) -> None:
        """Open a new connection."""
        if self.is_closed:
            return
        self.exchange.begin()
        self.world.network.connect(self.agent, self.exchange.connection)

    def unreachable(self, connection: int) -> None:
        """Note that an attempt failed."""
        if connection == self.exchange.connection and self.stream is None:
            self._again()

    def connected(self, stream: Stream) -> None:
        """Send Hello on a new stream."""
        if self.is_closed or stream.connection != self.exchange.connection:
            self.world.network.let_go(stream)
            return
        self.stream = stream
        agent, now_ms = self.agent, self.world.clock.now_ms
        self._send(stream, self.exchange.hello(agent.hello(), agent.state.epoch, now_ms))
        self._listen()

    def _send(self, stream: Stream, message: agent_pb2.SessionRequest) -> None:
        self.world.network.send_up(stream, message.SerializeToString())

    def _listen(self) -> None:
        """Wait for the next message, as long as the link does."""
        if self._silence is not None:
            self._silence.cancel()
        stream = self.stream
        expired = partial(self.agent.take, partial(self._silent, stream))
        self._silence = self.world.clock.after(self.exchange.silence_ms_max, expired)

    def _silent(self, stream: Stream | None) -> None:
        if stream is not None and stream is self.stream:
            self._drop()
            self._again()

    def receive(self, stream: Stream, message: bytes) -> None:
        """Apply a message of the stream, unless it is an old one."""
        if stream is not self.stream:
            return
        self._hear(stream, agent_pb2.SessionResponse.FromString(message))
        self._listen()

    def _hear(self, stream: Stream, message: agent_pb2.SessionResponse) -> None:
        agent, exchange = self.agent, self.exchange
        if not exchange.accept(message, agent.state.epoch):
            return
        if message.HasField("welcome"):
            self._backoff_ms = BACKOFF_MS_MIN
        sets_timing = exchange.take_timing(message)
        agent.on_message(message)
        for sent_ms in exchange.confirmed(message):
            agent.post(agent_inputs.Confirmed(sent_ms))
        if sets_timing and stream is self.stream:
            next_ms = self.world.clock.now_ms + exchange.interval_ms
            is_first = message.HasField("welcome")
            self._schedule_beat(0 if is_first else min(self._beat_at_ms, next_ms))

    def ended(self, stream: Stream, hangup: Hangup) -> None:
        """Note that the stream broke, or that the coordinator ended it."""
        if stream is not self.stream:
            return
        self._drop()
        if hangup.is_orderly and self.exchange.has_left:
            self.is_closed = True
            self.agent.post(agent_inputs.Disconnected())
            return
        ending = ending_of(hangup)
        if isinstance(ending, Misunderstood):
            raise Violation("Contract", f"{self.agent.host.name}: {ending}")
        if not isinstance(ending, Dismissed):
            self._again()
            return
        self.is_closed = True
        self.agent.on_dismissed(ending)

    def close(self) -> None:
        """Disconnect for good."""
        self.is_closed = True
        if self.stream is not None:
            self._drop()

    def wake(self) -> None:
        """Send the reports that are not sent yet, in a moment."""
        if not self._is_waking:
            self._is_waking = True
            self.world.clock.after(0, partial(self.agent.take, self._send_reports))

    def _drop(self) -> None:
        stream, self.stream = self.stream, None
        for timer in (self._beat, self._silence):
            if timer is not None:
                timer.cancel()
        if stream is not None:
            self.world.network.let_go(stream)

    def _again(self) -> None:
        self.agent.post(agent_inputs.Disconnected())
        pause_ms = self.world.rng.randint(self._backoff_ms // 2, self._backoff_ms)
        self._backoff_ms = min(self._backoff_ms * 2, BACKOFF_MS_MAX)
        self.world.clock.after(pause_ms, partial(self.agent.take, self.attempt))

    def _send_reports(self) -> None:
        self._is_waking = False
        stream, state, exchange = self.stream, self.agent.state, self.exchange
        if stream is None or not exchange.is_welcome:
            return
        now_ms = self.world.clock.now_ms
        for sequence, report in exchange.unsent(state.acknowledged + 1, state.reports):
            self._send(stream, exchange.report(sequence, report, state.epoch, now_ms))
            exchange.sent(sequence)

    def _schedule_beat(self, at_ms: int) -> None:
        if self._beat is not None:
            self._beat.cancel()
        beat = partial(self.agent.take, partial(self._send_beat, self.stream))
        self._beat_at_ms = max(at_ms, self.world.clock.now_ms)
        self._beat = self.world.clock.at(self._beat_at_ms, beat)

    def _send_beat(self, stream: Stream | None) -> None:
        if stream is None or stream is not self.stream or not self.exchange.is_welcome:
            return
        now_ms = self.world.clock.now_ms
        self._send(stream, self.exchange.heartbeat(self.agent.state.epoch, now_ms))
        self._schedule_beat(now_ms + self.exchange.interval_ms)
