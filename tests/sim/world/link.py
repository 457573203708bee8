"""The agent's link to the coordinator: `session/link.py` on virtual time."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.server.core.messages import inputs
from sim.world.clock import Timer
from sim.world.messages import Down, Hangup, desired_of, drain_of, notices_of, report_of
from sim.world.network import Stream

if TYPE_CHECKING:
    from sim.world.node import Agent

BACKOFF_MS_MIN = 50
BACKOFF_MS_MAX = 2_000
LEASE_MS = 5_000


class Link:
    """Connects, sends Hello and reports, and reconnects."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.world = agent.world
        self.connection = 0
        self.stream: Stream | None = None
        self.is_welcome = False
        self.is_closed = False
        self._sent = 0
        self._heartbeats = 0
        self._hello_ms = 0
        self._beats: deque[tuple[int, int]] = deque()
        """Number and sending time of each unanswered heartbeat."""
        self._backoff_ms = BACKOFF_MS_MIN
        self._interval_ms = 1_000
        self._lease_ms = LEASE_MS
        self._beat: Timer | None = None
        self._silence: Timer | None = None
        self._is_waking = False

    def attempt(self) -> None:
        """Open a new connection."""
        if self.is_closed:
            return
        self.connection += 1
        self.is_welcome = False
        self.world.network.connect(self.agent, self.connection)

    def unreachable(self, connection: int) -> None:
        """Note that an attempt failed."""
        if connection == self.connection and self.stream is None:
            self._again()

    def connected(self, stream: Stream) -> None:
        """Send Hello on a new stream."""
        if self.is_closed or stream.connection != self.connection:
            self.world.network.let_go(stream)
            return
        self.stream = stream
        self._sent = 0
        self._beats.clear()
        self._hello_ms = self.world.clock.now_ms
        self.world.network.send_up(stream, self.agent.hello(self.connection))
        self._listen()

    def _listen(self) -> None:
        """Wait a lease for the next message; for a Welcome at least the default lease."""
        if self._silence is not None:
            self._silence.cancel()
        stream = self.stream
        expired = partial(self.agent.take, partial(self._silent, stream))
        lease_ms = self._lease_ms if self.is_welcome else max(self._lease_ms, LEASE_MS)
        self._silence = self.world.clock.after(lease_ms, expired)

    def _silent(self, stream: Stream | None) -> None:
        if stream is not None and stream is self.stream:
            self._drop()
            self._again()

    def receive(self, stream: Stream, message: Down) -> None:
        """Apply a message, unless it is for another connection or of a former coordinator."""
        if stream is not self.stream:
            return
        self._hear(message)
        self._listen()

    def _hear(self, message: Down) -> None:
        agent = self.agent
        if message.connection != self.connection or message.epoch < agent.state.epoch:
            return
        if message.acknowledged:
            agent.post(agent_inputs.Acknowledged(message.acknowledged))
            if agent.is_gone:
                return  # that was its Goodbye; the message may hold an outcome too
        if message.welcome is not None:
            self.is_welcome = True
            self._backoff_ms = BACKOFF_MS_MIN
            self._interval_ms, self._lease_ms = message.interval_ms, message.lease_ms
            agent.name, agent.run = message.welcome.name, message.welcome.run
            agent.coordinator_id = message.coordinator_id
            agent.post(agent_inputs.Welcomed(message.epoch))
            self._schedule_beat(0)
        self._take_desired(message)
        if message.notify is not None or (message.welcome and agent.state.notices):
            notices = notices_of(message.notify, self.world.clock.now_ms)
            agent.post(agent_inputs.NoticesReceived(notices))

    def _take_desired(self, message: Down) -> None:
        agent = self.agent
        if message.desired is not None:
            desired = message.desired
            agent.note_told(desired.desired)
            agent.post(
                agent_inputs.DesiredReceived(
                    message.epoch,
                    desired.revision,
                    desired_of(desired.desired),
                    drain_of(desired, self.world.clock.now_ms),
                )
            )
        # Only now: before, an outdated desired state could still start workers.
        if message.welcome is not None:
            agent.post(agent_inputs.Confirmed(self._hello_ms))
        self._take_answer(message.heartbeat)

    def _take_answer(self, number: int) -> None:
        sent_ms: int | None = None
        while self._beats and self._beats[0][0] <= number:
            _, sent_ms = self._beats.popleft()
        if sent_ms is not None:
            self.agent.post(agent_inputs.Confirmed(sent_ms))

    def ended(self, stream: Stream, hangup: Hangup) -> None:
        """Note that the stream broke, or that the coordinator ended it."""
        if stream is not self.stream:
            return
        self._drop()
        if hangup.dismissal is None:
            self._again()
            return
        self.is_closed = True
        self.agent.post(agent_inputs.Dismissed(hangup.dismissal, hangup.text))

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
        self.is_welcome = False
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

    def _sender(self, sequence: int) -> inputs.Sender:
        agent = self.agent
        return inputs.Sender(agent.session, self.connection, agent.state.epoch, sequence)

    def _send_reports(self) -> None:
        self._is_waking = False
        stream, state = self.stream, self.agent.state
        if stream is None or not self.is_welcome:
            return
        for sequence, report in enumerate(state.reports, state.acknowledged + 1):
            if sequence > self._sent:
                message = report_of(report, self._sender(sequence), self.world.clock.now_ms)
                self.world.network.send_up(stream, message)
                self._sent = sequence

    def _schedule_beat(self, delay_ms: int) -> None:
        if self._beat is not None:
            self._beat.cancel()
        beat = partial(self.agent.take, partial(self._send_beat, self.stream))
        self._beat = self.world.clock.after(delay_ms, beat)

    def _send_beat(self, stream: Stream | None) -> None:
        if stream is None or stream is not self.stream or not self.is_welcome:
            return
        self._heartbeats += 1
        self._beats.append((self._heartbeats, self.world.clock.now_ms))
        beat = inputs.Heartbeat(self._sender(0), self._heartbeats)
        self.world.network.send_up(stream, beat)
        self._schedule_beat(self._interval_ms)
