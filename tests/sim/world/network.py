"""Streams between agents and the coordinator, as far as TCP and HTTP/2 keep their promises.

Within one stream messages arrive in order, once, or not at all. A stream may be cut at any time:
what is in flight is lost, and each side learns of it now, later, or only by its own clock. A node
behind a partition gets nothing and loses nothing: what was sent arrives when the partition heals,
perhaps long after its stream was given up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rallypoint.server.agents.outbox import Outbox
from rallypoint.server.core.messages import inputs
from rallypoint.wire.connecting import CONNECT_S_MAX
from sim.world.wire import Hangup

if TYPE_CHECKING:
    from sim.world.node import Agent, Host
    from sim.world.server import Server
    from sim.world.world import World

CONNECT_MS_MAX = int(CONNECT_S_MAX * 1000)
"""How long an agent waits for a connection."""

Up = tuple[bytes | Hangup, int]
"""Towards the coordinator: a SessionRequest, or the end; and when it was sent."""
Down = bytes | Hangup
"""Towards the agent: a SessionResponse, or the end."""


@dataclass(slots=True, eq=False)
class Stream:
    """One connection of one agent to one process of the coordinator."""

    agent: Agent
    connection: int
    boot: int
    """Number of the process that accepted it."""
    life: int
    """Life of the coordinator that this process began or continued."""
    member: Any = None
    """Of several coordinators: the process that has accepted it."""
    server: Server | None = None
    """Of several coordinators: who serves the job of the agent."""
    hello: inputs.Hello | None = None
    """Set when the Hello has arrived, and the outbox with it."""
    outbox: Outbox | None = None
    up: deque[Up] = field(default_factory=deque)
    down: deque[Down] = field(default_factory=deque)
    up_clear_ms: int = 0
    """When the last message to the coordinator arrives: none overtakes it."""
    down_clear_ms: int = 0
    is_cut: bool = False
    """The stream is broken."""
    is_writing: bool = False
    """The coordinator is about to send what the outbox holds."""
    server_done: bool = False
    """The coordinator has closed it."""


class Network:
    """Everything between the nodes and the coordinator's host."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.streams: list[Stream] = []
        """Not cut yet, oldest first."""

    def latency_ms(self, agent: Agent) -> int:
        """Return how long the next message of or for a node takes."""
        world = self.world
        faults = world.faults
        if world.happens(faults.slow_percent):
            world.disturb_host(agent.host)
            return world.rng.randint(faults.delay_ms_max, faults.slow_ms_max)
        return world.rng.randint(0, faults.delay_ms_max)

    def connect(self, agent: Agent, connection: int) -> None:
        """Try to open a stream; the agent's link learns the result."""
        clock, host = self.world.clock, agent.host
        failed = partial(agent.link.unreachable, connection)
        if host.unreachable_until_ms > clock.now_ms or self.world.is_dark:
            clock.after(CONNECT_MS_MAX, partial(agent.take, failed))
        else:
            arrive = partial(self._arrive, agent, connection)
            clock.after(min(self.latency_ms(agent), CONNECT_MS_MAX - 1), arrive)

    def _arrive(self, agent: Agent, connection: int) -> None:
        server = self.world.server
        if server is None:
            agent.take(partial(agent.link.unreachable, connection))
            return
        if server.stalled_until_ms > self.world.clock.now_ms:  # it accepts and does not answer
            failed = partial(agent.link.unreachable, connection)
            self.world.clock.after(CONNECT_MS_MAX, partial(agent.take, failed))
            return
        stream = Stream(agent, connection, server.boot, server.life)
        self.streams.append(stream)
        agent.take(partial(agent.link.connected, stream))

    def send_up(self, stream: Stream, message: bytes | Hangup) -> None:
        """Send towards the coordinator."""
        if stream.is_cut:
            return
        stream.up.append((message, self.world.clock.now_ms))
        at_ms = self.world.clock.now_ms + self.latency_ms(stream.agent)
        stream.up_clear_ms = max(stream.up_clear_ms, at_ms)
        self.world.clock.at(stream.up_clear_ms, partial(self._deliver_up, stream))

    def _deliver_up(self, stream: Stream) -> None:
        again = partial(self._deliver_up, stream)
        if not stream.up or self._is_held_back(stream, again) or self._awaits_peer(stream, again):
            return
        message, sent_ms = stream.up.popleft()
        server = self._peer_of(stream, message)
        if server is not None:
            server.receive(stream, message, sent_ms)
        elif not self._is_dark(stream):
            # The process that had this stream is gone. Its host, if there is one, answers with a
            # reset.
            self.cut(stream, server_ms=None, agent_ms=self.latency_ms(stream.agent))

    def _peer_of(self, stream: Stream, message: bytes | Hangup | None) -> Server | None:
        """Return who serves a stream, and gets this message; None if its process is gone."""
        server = self.world.server
        return None if server is None or server.boot != stream.boot else server

    def _is_dark(self, stream: Stream) -> bool:
        """Return whether nothing resets a stream whose process is gone."""
        return self.world.is_dark

    def _awaits_peer(self, stream: Stream, again: partial[None]) -> bool:
        """Delay a delivery until someone knows who serves the stream."""
        return False

    def send_down(self, stream: Stream, message: Down) -> None:
        """Send towards the agent."""
        if stream.is_cut:
            return
        stream.down.append(message)
        at_ms = self.world.clock.now_ms + self.latency_ms(stream.agent)
        stream.down_clear_ms = max(stream.down_clear_ms, at_ms)
        self.world.clock.at(stream.down_clear_ms, partial(self._deliver_down, stream))

    def _deliver_down(self, stream: Stream) -> None:
        if not stream.down or self._is_held_back(stream, partial(self._deliver_down, stream)):
            return
        message = stream.down.popleft()
        link = stream.agent.link
        if isinstance(message, Hangup):
            stream.agent.take(partial(link.ended, stream, message))
        else:
            stream.agent.take(partial(link.receive, stream, message))

    def _is_held_back(self, stream: Stream, again: partial[None]) -> bool:
        """Delay a delivery while the node is behind a partition."""
        until_ms = stream.agent.host.unreachable_until_ms
        if until_ms <= self.world.clock.now_ms:
            return False
        self.world.clock.at(until_ms, again)
        return True

    def release(self, host: Host) -> None:
        """End the partition of a host: what waits arrives at once."""
        host.unreachable_until_ms = self.world.clock.now_ms
        for stream in self.streams:
            if stream.agent.host is host:
                for _ in stream.up:
                    self.world.clock.after(0, partial(self._deliver_up, stream))
                for _ in stream.down:
                    self.world.clock.after(0, partial(self._deliver_down, stream))

    def cut(self, stream: Stream, *, server_ms: int | None, agent_ms: int | None) -> None:
        """Break a stream; each side learns of it after so long, or (None) not at all."""
        if stream.is_cut:
            return
        stream.is_cut = True
        stream.up.clear()
        stream.down.clear()
        self.streams.remove(stream)
        clock = self.world.clock
        if server_ms is not None:
            clock.after(server_ms, partial(self._tell_server, stream))
        if agent_ms is not None:
            ended = partial(stream.agent.link.ended, stream, Hangup())
            clock.after(agent_ms, partial(stream.agent.take, ended))

    def _tell_server(self, stream: Stream) -> None:
        server = self._peer_of(stream, None)
        if server is not None:
            server.receive(stream, Hangup(), self.world.clock.now_ms)

    def let_go(self, stream: Stream) -> None:
        """Cancel a stream on the agent's side; that follows what was sent, or overtakes it."""
        if self.world.rng.random() < 0.5:
            stream.up.clear()
        self.send_up(stream, Hangup())
