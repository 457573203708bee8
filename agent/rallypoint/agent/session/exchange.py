"""What an agent sends on its connections, and which answers count: the link without its IO.

Connections are numbered, and every message carries the number of its connection. A connection sends
each report once, in order; the next one repeats what was not acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from rallypoint.agent.core.reports import Report
from rallypoint.agent.session.translate import report_message
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.durations import to_ms

BEATS_MAX = 64
"""Unanswered heartbeats whose time is kept; older ones count as not confirmed."""
DEFAULT_INTERVAL_MS = 1_000
INTERVAL_MS_MIN = 50
DEFAULT_LEASE_MS = 5_000
"""The lease until a Welcome sets one, and the shortest wait for a Welcome: a coordinator to which a
whole fleet reconnects may need longer than the lease of one job."""
LEASE_MS_MIN = 200


class Exchange:
    """One agent's side of its connections, one after the other."""

    def __init__(self, session_id: str) -> None:
        """Begin without a connection; `session_id` is the agent's incarnation."""
        self.session_id = session_id
        self.connection = 0
        """Number of the latest connection."""
        self.interval_ms = DEFAULT_INTERVAL_MS
        """Between two heartbeats."""
        self.lease_ms = DEFAULT_LEASE_MS
        self.is_welcome = False
        """A Welcome has arrived on the latest connection."""
        self.has_left = False
        """A Goodbye was sent on the latest connection."""
        self._sent = 0
        """Highest report that was sent on the latest connection."""
        self._heartbeat = 0
        """Latest heartbeat on the latest connection."""
        self._hello_ms = 0
        """When the Hello of the latest connection was sent."""
        self._beats: deque[tuple[int, int]] = deque(maxlen=BEATS_MAX)
        """Number and sending time of each unanswered heartbeat, oldest first."""

    def begin(self) -> None:
        """Begin the next connection."""
        self.connection += 1
        self.is_welcome = self.has_left = False
        self._sent = self._heartbeat = 0
        self._beats.clear()

    # --- To the coordinator -----------------------------------------------------------------------

    def hello(self, hello: agent_pb2.Hello, epoch: int, now_ms: int) -> agent_pb2.SessionRequest:
        """Return the first message of the connection, to be sent at `now_ms`.

        `epoch` is the highest that the agent has seen, here and below.
        """
        self._hello_ms = now_ms
        return self._address(agent_pb2.SessionRequest(hello=hello), epoch)

    def heartbeat(self, epoch: int, now_ms: int) -> agent_pb2.SessionRequest:
        """Return the next heartbeat, to be sent at `now_ms`."""
        self._heartbeat += 1
        self._beats.append((self._heartbeat, now_ms))
        beat = agent_pb2.Heartbeat(number=self._heartbeat)
        return self._address(agent_pb2.SessionRequest(heartbeat=beat), epoch)

    def unsent(self, first: int, reports: tuple[Report, ...]) -> Iterator[tuple[int, Report]]:
        """Yield each report that was not sent on this connection, oldest first, with its number.

        Args:
            first: number of the first of `reports`.
            reports: every unacknowledged report, oldest first.
        """
        for sequence, report in enumerate(reports, first):
            if sequence > self._sent:
                yield sequence, report

    def report(
        self, sequence: int, report: Report, epoch: int, now_ms: int
    ) -> agent_pb2.SessionRequest:
        """Return a report with its number; `sent` follows once it is sent."""
        message = report_message(report, now_ms)
        message.sequence = sequence
        self.has_left = message.HasField("goodbye")
        return self._address(message, epoch)

    def sent(self, sequence: int) -> None:
        """Note that the report with this number was sent."""
        self._sent = sequence

    def _address(self, message: agent_pb2.SessionRequest, epoch: int) -> agent_pb2.SessionRequest:
        message.session_id = self.session_id
        message.connection = self.connection
        message.epoch = epoch
        return message

    # --- From the coordinator ---------------------------------------------------------------------

    @property
    def silence_ms_max(self) -> int:
        """How long the next message may take before the connection counts as broken."""
        return self.lease_ms if self.is_welcome else max(self.lease_ms, DEFAULT_LEASE_MS)

    def accept(self, message: agent_pb2.SessionResponse, epoch: int) -> bool:
        """Return whether a message counts: for this connection, and from no older coordinator."""
        if message.connection != self.connection or message.epoch < epoch:
            return False
        if message.HasField("welcome"):
            self.is_welcome = True
        return True

    def take_timing(self, message: agent_pb2.SessionResponse) -> bool:
        """Take over the interval and the lease that a message sets; return whether it sets them."""
        timing: agent_pb2.Welcome | agent_pb2.Acknowledgement = message.welcome
        if not message.HasField("welcome"):
            timing = message.acknowledgement
            if not timing.HasField("heartbeat_interval"):
                return False
        self.interval_ms = max(INTERVAL_MS_MIN, to_ms(timing.heartbeat_interval))
        self.lease_ms = max(LEASE_MS_MIN, to_ms(timing.lease))
        return True

    def confirmed(self, message: agent_pb2.SessionResponse) -> Iterator[int]:
        """Yield when the messages were sent that this one confirms: of Hello, then of a heartbeat.

        Apply the message first: before it, an outdated desired state could still start workers.
        """
        if message.HasField("welcome"):
            yield self._hello_ms
        number, sent_ms = message.acknowledgement.heartbeat, None
        while self._beats and self._beats[0][0] <= number:
            _, sent_ms = self._beats.popleft()
        if sent_ms is not None:
            yield sent_ms
