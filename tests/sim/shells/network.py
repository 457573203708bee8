"""The network of a seed: it connects agents to the coordinator and carries their streams."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from sim.shells.calls import FAILED, READY, Channel, Server
from sim.shells.loop import NS, Loop
from sim.shells.node import AgentProcess, CoordinatorProcess
from sim.shells.stream import Stream

if TYPE_CHECKING:
    from sim.shells.world import World

CONNECTS_S_MAX = 0.01
CONNECTIONS_MAX = 200
"""More connections than any agent needs while faults last, and while it comes to rest."""


class Place(Protocol):
    """The machine of a process that connects to others."""

    name: str
    unreachable_ns: int
    deaf_ns: int


class Client(Protocol):
    """A process that connects to others."""

    loop: Loop

    @property
    def host(self) -> Place: ...


class ServerProcess(Protocol):
    """A process that others connect to."""

    loop: Loop
    server: Server | None
    is_gone: bool


class Network:
    """Everything between the nodes and the coordinator's host."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._streams: list[tuple[Stream, Client, ServerProcess]] = []
        """Those that some side does not know to be over, oldest first."""
        self.on_open: Callable[[Stream, Client, ServerProcess], None] = lambda *_: None
        """Learns of each call."""

    def _client_of(self, loop: Loop) -> Client:
        process: Any = self.world.process_of(loop)
        assert not isinstance(process, CoordinatorProcess)
        client: Client = process
        return client

    def connect(self, channel: Channel) -> None:
        """Begin to connect an agent, as TCP and HTTP/2 do."""
        if channel.loop.is_dead:
            return
        world, schedule = self.world, self.world.schedule
        host = self._client_of(channel.loop).host
        silent_ns = max(host.unreachable_ns, host.deaf_ns) - schedule.now_ns
        delay_s = max(0.0, silent_ns / NS) + channel.loop.rng.uniform(0, CONNECTS_S_MAX)

        def answer() -> None:
            life = world.server_at(channel.target)
            if world.is_dark_at(channel.target) or channel.is_closed:
                return
            if life is None or life.server is None or not life.server.is_listening:
                channel.loop.call_soon(channel.settle, FAILED)
            elif life.loop.wake_ns > schedule.now_ns:  # it stands still, or computes
                schedule.after((life.loop.wake_ns - schedule.now_ns) / NS, answer)
            else:
                channel.loop.call_soon(channel.settle, READY)

        schedule.after(delay_s, answer)

    def open(self, channel: Channel) -> Stream:
        """Return the stream of a new call."""
        world = self.world
        process, life = self._client_of(channel.loop), world.server_at(channel.target)
        if (
            isinstance(process, AgentProcess)
            and process.agent.link.exchange.connection > CONNECTIONS_MAX
        ):
            world.violate("ConnectionsSettle", f"{process.loop.name} connects for ever")
        rng, most_s, host = Random(world.draw()), world.rates.delay_s, process.host
        stream = Stream(world.schedule, rng, world.rates.window, lambda: rng.uniform(0, most_s))
        stream.up.held_until = lambda: host.unreachable_ns
        stream.down.held_until = lambda: max(host.unreachable_ns, host.deaf_ns)
        if life is None or life.server is None:
            stream.is_over_at_server = True
            stream.cut(client_s=0.001, server_s=None)
            return stream
        self._streams = [one for one in self._streams if not one[0].is_over]
        self._streams.append((stream, process, life))
        self.on_open(stream, process, life)
        accept = life.server.accept
        world.schedule.after(rng.uniform(0, most_s), lambda: accept(stream, host.name))
        return stream

    def reset(self, gone: Client | ServerProcess, *, resets: bool) -> None:
        """End the streams of a process that is gone; the peers learn of it if `resets`."""
        for stream, process, life in self._streams:
            soon_s = stream.rng.uniform(0, 0.01) if resets else None
            if gone is process and not stream.is_over_at_server:
                stream.cut(client_s=None, server_s=soon_s)
            elif gone is life and stream.status is None:
                stream.is_over_at_server = True
                stream.cut(client_s=soon_s, server_s=None)

    def find(self, process: Client) -> Stream | None:
        """Return the open stream of a process."""
        return next(
            (
                stream
                for stream, owner, life in reversed(self._streams)
                if owner is process and not life.is_gone and stream.status is None
            ),
            None,
        )
