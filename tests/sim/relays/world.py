"""A world with relays: two between the agents and the coordinator, and what goes wrong with them.

Each agent knows both relays and the coordinator, in a drawn order. A relay is the real one, with a
separate loop. It may be killed, stopped, frozen and cut off; another one starts at its address.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import Any

from rallypoint.relay.serve import Settings, relaying
from sim.relays.seats import Carried, Seats
from sim.shells.calls import Server
from sim.shells.loop import NS, Loop, new_loop
from sim.shells.network import Client, ServerProcess
from sim.shells.node import ADDRESS, TARGET
from sim.shells.stream import Stream
from sim.shells.world import Host, World

RELAYS = 2
FIRST_PORT = 50_052
LASTS_S = 15.0
"""How long the jobs may notice a fault of a relay, at most."""
RETURN_S_MAX = 3.0
CALM_SHARE = 0.35
"""Share of the seeds in which no relay meets a fault: what else goes wrong is seen alone."""
SALT = 0x52454C
"""Draws of relays come from another generator, so that a seed means the same without them."""


class RelayFault(Enum):
    """What can go wrong with a relay."""

    KILL = "kill relay"
    STOP = "stop relay"  # SIGTERM
    DIE = "relay's host dies"  # no stream is reset
    FREEZE = "freeze relay"
    CUT_OFF = "cut relay off"  # nothing passes between it and the coordinator


MILD = (RelayFault.KILL, RelayFault.STOP)
"""Faults that every agent notices at once: they may cost no node its place, however short its
lease is."""


@dataclass(slots=True, eq=False)
class RelayHost:
    """The machine of a relay."""

    name: str
    target: str
    """Its address."""
    process: RelayProcess | None = None
    """None: no relay runs there."""
    is_dark: bool = False
    """The machine is dead: attempts to connect get no answer."""
    unreachable_ns: int = 0
    deaf_ns: int = 0


class RelayProcess:
    """One relay, from its start to its end."""

    def __init__(self, world: RelayedWorld, host: RelayHost, number: int) -> None:
        self.world = world
        self.host = host
        self.loop: Loop = new_loop(world.schedule, f"{host.name}/{number}", Random(world.draw()))
        self.server: Server | None = None
        self.is_gone = False
        self.seats = Seats(world, self)
        self._stop = asyncio.Event()
        self.main = self.loop.create_task(self._live())
        self.main.add_done_callback(lambda task: world.relay_ended(self))

    async def _live(self) -> None:
        port = int(self.host.target.rpartition(":")[2])
        async with relaying(Settings(ADDRESS, port, TARGET)) as running:
            stop = asyncio.get_running_loop().create_task(self._stop.wait())
            await asyncio.wait((stop, running.failed), return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if running.failed.done():
                self.world.violate("RelayLives", f"{running.failed.exception()!r}")

    def stop(self) -> None:
        """Let it end in order, as after SIGTERM."""
        self.loop.call_soon(self._stop.set)


class RelayedWorld(World):
    """One seed, with relays."""

    def __init__(
        self, seed: int, *, is_durable: bool | None = None, is_traced: bool = False
    ) -> None:
        super().__init__(seed, is_durable=is_durable, is_traced=is_traced)
        self._relay_rng = Random(seed ^ SALT)
        self.network.on_open = self._note_open
        self.relays = [
            RelayHost(f"relay{at}", f"{ADDRESS}:{FIRST_PORT + at}") for at in range(RELAYS)
        ]
        self._relay_lives = 0
        rng = self._relay_rng
        self._orders = {host.name: self._draw_order(rng) for host in self.hosts}
        kinds: tuple[RelayFault, ...] = MILD if self.rates.is_patient else tuple(RelayFault)
        is_calm = rng.random() < CALM_SHARE
        self._faults = () if is_calm else tuple(kind for kind in kinds if rng.random() < 0.6)
        self._pause_s = rng.uniform(0.5, 4.0)

    def _draw_order(self, rng: Random) -> str:
        """Return the addresses that an agent is given: most know a relay first."""
        relays = [host.target for host in self.relays]
        rng.shuffle(relays)
        order = [TARGET, *relays] if rng.random() < 0.1 else [*relays, TARGET]
        return ",".join(order)

    def targets_of(self, host: Host) -> str:
        return self._orders[host.name]

    def server_at(self, target: str) -> ServerProcess | None:
        relay = next((one for one in self.relays if one.target == target), None)
        return self.coordinator if relay is None else relay.process

    def is_dark_at(self, target: str) -> bool:
        relay = next((one for one in self.relays if one.target == target), None)
        return self.is_dark if relay is None else relay.is_dark

    def _note_open(self, stream: Stream, client: Client, server: ServerProcess) -> None:
        if isinstance(client, RelayProcess):
            client.seats.carried.append(Carried(stream))
        elif isinstance(server, RelayProcess):
            server.seats.agents.append(stream)

    # --- phases ---

    def begin(self) -> None:
        for relay in self.relays:
            self.start_relay(relay)
        super().begin()
        self._next_fault()

    def calm(self) -> None:
        super().calm()
        for relay in self.relays:
            relay.unreachable_ns = relay.deaf_ns = 0
            if relay.process is not None:
                relay.process.loop.thaw()
            self.start_relay(relay)

    def stop_others(self) -> None:
        for relay in self.relays:
            if relay.process is not None:
                relay.process.stop()

    # --- relays ---

    def start_relay(self, relay: RelayHost) -> None:
        """Start a relay where none runs."""
        if relay.process is None:
            self._relay_lives += 1
            relay.is_dark = False
            self.note("relay", relay.name, self._relay_lives)
            relay.process = RelayProcess(self, relay, self._relay_lives)
            everyone: list[Any] = self.processes
            everyone.append(relay.process)

    def restart_relay(self, relay: RelayHost) -> None:
        """Start another relay, unless faults are over: then one was started."""
        if not self.is_calm:
            self.start_relay(relay)

    def relay_ended(self, process: RelayProcess) -> None:
        """Note that a relay has ended in order."""
        if process.is_gone:
            return
        process.is_gone = process.loop.is_dead = True
        process.host.process = None
        self.note("relay ended", process.loop.name)
        self.rules.ended(process.loop)
        if process.server is not None and process.server.bugs:
            self.violate("NothingIsLost", f"{process.loop.name}: {process.server.bugs}")
        self.network.reset(process, resets=True)
        if self.is_calm and not self.is_over:
            self.start_relay(process.host)  # it was ending when faults stopped

    def _kill(self, process: RelayProcess, *, resets: bool) -> None:
        self.rules.killed(process.loop)
        process.host.process, process.host.is_dark = None, not resets
        process.is_gone = process.loop.is_dead = True
        self.network.reset(process, resets=resets)

    def _next_fault(self) -> None:
        if self._faults:
            self.schedule.after(self._relay_rng.expovariate(1 / self._pause_s), self._strike)

    def _strike(self) -> None:
        if self.is_calm:
            return
        self._next_fault()
        rng = self._relay_rng
        fault, relay = rng.choice(self._faults), rng.choice(self.relays)
        process = relay.process
        if process is None:
            return
        self.note("fault", fault.value, relay.name)
        for job in self.jobs:
            self.rules.disturbed(job.job_id, LASTS_S)
        match fault:
            case RelayFault.KILL | RelayFault.DIE:
                self._kill(process, resets=fault is RelayFault.KILL)
                self._return_later(relay)
            case RelayFault.STOP:
                process.stop()
                self._return_later(relay)
            case RelayFault.FREEZE:
                process.loop.freeze(int(rng.uniform(0.1, 8.0) * NS))
            case RelayFault.CUT_OFF:
                relay.unreachable_ns = self.schedule.now_ns + int(rng.uniform(0.1, 8.0) * NS)

    def _return_later(self, relay: RelayHost) -> None:
        delay_s = self._relay_rng.uniform(0.1, RETURN_S_MAX)
        self.schedule.after(delay_s, partial(self.restart_relay, relay))
