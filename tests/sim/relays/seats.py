"""The rule of seats: who is connected to a relay has a seat at a coordinator, and no one else has.

It is judged from outside: by the streams of agents that are open at a relay, and by what passes
between the relay and the coordinator. Either side may lag behind the other for a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from sim.shells.loop import NS
from sim.shells.network import Place
from sim.shells.stream import Stream

if TYPE_CHECKING:
    from sim.relays.world import RelayedWorld, RelayProcess

LOOK_S = 0.5
LAG_NS = 3 * NS
"""How long both sides may differ: a relay waits for a coordinator for a second, and connects within
another one."""


class Carried:
    """The call of a relay to the coordinator, as the network sees it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.seats: set[int] = set()
        """Streams that the relay has opened, and neither side has ended."""
        self._pass_up, self._pass_down = stream.up.put, stream.down.get
        pipes: tuple[Any, Any] = (stream.up, stream.down)
        pipes[0].put, pipes[1].get = self._put, self._get

    async def _put(self, raw: bytes) -> bool:
        for entry in agent_pb2.RelayRequest.FromString(raw).entries:
            if entry.HasField("opening"):
                self.seats.add(entry.stream)
            elif entry.HasField("closing") and not entry.closing.still_reads:
                self.seats.discard(entry.stream)
        return await self._pass_up(raw)

    async def _get(self) -> bytes | None:
        raw = await self._pass_down()
        for entry in agent_pb2.RelayResponse.FromString(raw or b"").entries:
            if entry.HasField("end"):
                self.seats.discard(entry.stream)
        return raw


class Seats:
    """Looks at one relay now and then."""

    def __init__(self, world: RelayedWorld, process: RelayProcess) -> None:
        self._world = world
        self._process = process
        self.agents: list[Stream] = []
        """Streams of agents to the relay."""
        self.carried: list[Carried] = []
        self._differs_ns: int | None = None
        """Since when the two sides differ."""
        world.schedule.after(LOOK_S, self._look)

    def _look(self) -> None:
        world, process = self._world, self._process
        if process.is_gone or world.is_over:
            return
        world.schedule.after(LOOK_S, self._look)
        self.agents = [one for one in self.agents if not one.is_over_at_server]
        self.carried = [one for one in self.carried if one.stream.status is None]
        now_ns = world.schedule.now_ns
        problem = self._find_problem()
        if not problem or self._is_disturbed(now_ns):
            self._differs_ns = None
        elif self._differs_ns is None:
            self._differs_ns = now_ns
        elif now_ns - self._differs_ns > LAG_NS:
            world.violate("SeatsAreStreams", f"{process.loop.name}: {problem}")

    def _find_problem(self) -> str:
        seats = sum(len(one.seats) for one in self.carried)
        # The relay learns nothing of a stream that is cut, and sends what it has into it.
        well = [one for one in self.agents if not (one.up.is_cut or one.down.is_cut)]
        if len(well) > seats:
            return f"{len(well)} agents have {seats} seats"
        if len(self.agents) < seats:
            return f"{seats} seats are of {len(self.agents)} agents"
        return ""

    def _is_disturbed(self, now_ns: int) -> bool:
        """Return whether the relay or a peer of it stands still, is cut off, or has just gone."""
        calls = [one.stream for one in self.carried]
        if not calls or any(call.is_over_at_server or call.up.is_cut for call in calls):
            return True  # agents come and wait for the relay, and go
        life = self._world.coordinator
        loops = [self._process.loop] if life is None else [self._process.loop, life.loop]
        hosts: tuple[Place, ...] = (self._process.host, *self._world.hosts)
        silent_ns = max(max(one.unreachable_ns, one.deaf_ns) for one in hosts)
        return silent_ns > now_ns or any(loop.wake_ns > now_ns for loop in loops)
