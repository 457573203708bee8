"""Injects the faults that the seed's options allow, at random instants, until faults stop."""

from __future__ import annotations

import dataclasses
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from msgspec import structs

from rallypoint.agent.core import inputs
from rallypoint.server.shell.coordinator import LATE_MS
from sim.seeds.faults import Fault, Feature
from sim.seeds.scenario import DRAIN_MS_MAX, OTHER_RESTARTS
from sim.world.node import Host
from sim.world.server import PULSE_MS

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.world import World

FREEZE_MS_MAX = 9_000
"""Longer than a lease."""
PARTITION_MS_MAX = 12_000
DOWN_MS_MAX = 4_000
"""How long a coordinator is away."""
STALL_MS_MAX = 12_000
"""Long enough for every agent to give up its stream."""
TAKEOVER_MS = 4_000
"""After this a new coordinator has adopted what it can: its window and a margin."""
BRIEF_BREAK_MS = 2_000
"""After this a stream that reconnected at once counts as undisturbed."""
SIGTERM = 15


class Chaos:
    """Injects faults."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._strangers = Random(world.faults.until_ms)
        """A separate generator: the other choices of a seed stay as they are."""
        if world.faults.kinds:
            self._schedule()

    def _schedule(self) -> None:
        mean_ms = self.world.faults.every_ms
        delay_ms = int(self.world.rng.expovariate(1 / mean_ms)) + 1
        self.world.clock.after(delay_ms, self._strike)

    def _strike(self) -> None:
        world = self.world
        if world.is_calm:
            return
        kind = world.rng.choice(world.faults.kinds)
        host = world.rng.choice(world.hosts)
        world.note("fault", kind.value, host.name)
        world.coverage.counts["fault", kind.value] += 1
        if kind in (Fault.CRASH, Fault.BLACKOUT, Fault.STALL):
            self._strike_coordinator(kind)
        else:
            self._strike_host(kind, host)
        self._schedule()

    def _strike_coordinator(self, kind: Fault) -> None:
        world, now_ms = self.world, self.world.clock.now_ms
        if world.fleet is not None:
            world.fleet.chaos.strike_as(kind)
            return
        server = world.server
        if server is None or server.stalled_until_ms > now_ms:
            return
        down_ms = world.rng.randint(1, DOWN_MS_MAX)
        if kind is Fault.STALL:
            # It ends with the faults: an agent that waits for its end may give up meanwhile.
            left_ms = max(1, world.faults.until_ms - now_ms)
            stalled_ms = min(world.rng.randint(100, STALL_MS_MAX), left_ms)
            world.shake(server, stalled_ms)
            # Up to a pulse may pass before lateness counts.
            noticed_ms = max(0, stalled_ms - world.rng.randint(0, PULSE_MS))
            server.stall(stalled_ms, noticed_ms if noticed_ms > LATE_MS else 0)
            return
        if kind is Fault.BLACKOUT:
            world.disturb_all()
        else:
            world.shake(server, down_ms)
        world.stop_coordinator(resets=kind is Fault.CRASH)
        world.clock.after(down_ms, self.begin_again)

    def begin_again(self) -> None:
        """Start a coordinator; some agents with other flags may find it before the members do."""
        world = self.world
        world.start_coordinator()
        if world.is_calm or Feature.OTHER_FLAGS not in world.faults.features:
            return
        for job in world.jobs:
            if self._strangers.random() < 0.5:
                plan = dataclasses.replace(job.nodes[0], name="stranger", node_rank=None)
                spec = structs.replace(job.spec, max_restarts=OTHER_RESTARTS)
                stranger = Host(f"{job.job_id}/stranger", plan, is_stranger=True)
                world.start_agent(stranger, spec)
                assert stranger.agent is not None
                world.clock.after(TAKEOVER_MS, partial(self._dismiss, stranger.agent))

    def _dismiss(self, stranger: Agent) -> None:
        """End an agent with other flags that was not refused: all members had gone."""
        if not stranger.is_gone:
            self.world.kill_agent(stranger, resets=True)

    def _strike_host(self, kind: Fault, host: Host) -> None:
        agent = host.agent
        if kind is Fault.START_AGENT:
            self.world.start_agent(host)
        elif kind in (Fault.CORDON, Fault.UNCORDON):
            self.world.ask_for(host, is_cordon=kind is Fault.CORDON)
        elif agent is None or agent.is_gone:
            return
        elif kind is Fault.SEVER:
            self._sever(agent)
        else:
            self.world.disturb_host(host)
            self._harm(kind, agent)

    def _harm(self, kind: Fault, agent: Agent) -> None:
        """Disturb an agent in a way that its job must or may notice."""
        world, rng = self.world, self.world.rng
        match kind:
            case Fault.KILL_AGENT | Fault.POWER_OFF:
                world.kill_agent(agent, resets=kind is Fault.KILL_AGENT)
            case Fault.FREEZE_AGENT:
                agent.freeze(rng.randint(100, FREEZE_MS_MAX))
            case Fault.PARTITION:
                world.partition(agent.host, rng.randint(100, PARTITION_MS_MAX))
            case Fault.TERMINATE:
                agent.was_terminated = True
                signalled = partial(agent.post, inputs.SignalReceived(SIGTERM))
                agent.take(signalled)
                if rng.random() < 0.3:
                    world.clock.after(rng.randint(1, 2_000), partial(agent.take, signalled))
            case Fault.DRAIN:
                world.drain(agent, rng.randint(0, DRAIN_MS_MAX))
            case Fault.LOSE_HELPER:
                agent.workers.lose_helper()
            case _:
                raise AssertionError(kind)

    def _sever(self, agent: Agent) -> None:
        """Break a stream; an agent that notices at once reconnects before it is missed."""
        world, stream = self.world, agent.link.stream
        server = world.server_of(agent.host.plan.job_id)
        noticed = (None, 0, 50, 600, 3_000)
        server_ms, agent_ms = world.rng.choice(noticed), world.rng.choice(noticed)
        if stream is None:
            return
        if agent_ms in (0, 50) and server is not None:
            until_ms = world.clock.now_ms + BRIEF_BREAK_MS
            world.safety.shaken(server, until_ms, [agent.host.plan.job_id])
        else:
            world.disturb_host(agent.host)
        world.network.cut(stream, server_ms=server_ms, agent_ms=agent_ms)
