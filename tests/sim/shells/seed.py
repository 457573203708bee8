"""One seed with the real shells, from its beginning until every process has ended."""

from __future__ import annotations

import traceback
from collections import Counter

from sim.seeds.campaign import CRASHES, Result, explain
from sim.shells.loop import NS
from sim.shells.node import stand_ins
from sim.shells.world import World
from sim.world.clock import Livelock

REST_S_MAX = 180
"""How long the world may take to come to rest once faults have stopped."""
LOOK_S = 1


def run_seed(
    seed: int,
    *,
    is_durable: bool | None = None,
    is_traced: bool = False,
    kind: type[World] = World,
) -> Result:
    """Run one seed. It counts what happened, and how often a rule about time was applied.

    Args:
        seed: what everything is drawn from.
        is_durable: whether the journal outlives the coordinator; None: as the seed draws it.
        is_traced: whether to keep the history.
        kind: what the world has beside a coordinator and agents.
    """
    world = kind(seed, is_durable=is_durable, is_traced=is_traced)
    with stand_ins(world):
        try:
            _live(world)
        except Livelock as livelock:
            world.violate("Livelock", str(livelock))
        except CRASHES as error:
            world.violate("Crash", explain(error))
            if is_traced:
                traceback.print_exc()
        rule, failure = world.violation or ("", "")
        digest, virtual_ms = world.digest, world.schedule.now_ms
        trace, world.trace = world.trace or [], None
        world.bury()
    counts = Counter(world.events)
    counts.update({f"rule {name}": count for name, count in world.rules.counts.items()})
    steps = world.schedule.turns
    return Result(seed, failure, rule, steps, virtual_ms, digest, counts=counts, trace=trace)


def _live(world: World) -> None:
    schedule = world.schedule
    world.begin()
    schedule.run(schedule.now_ns + int(world.rates.until_s * NS))
    if world.violation:
        return
    world.calm()
    due_ms = schedule.now_ms + REST_S_MAX * 1_000
    while not world.violation and any(host.living for host in world.hosts):
        schedule.run(schedule.now_ns + LOOK_S * NS)
        if schedule.now_ms > due_ms:
            left = [host.living.loop.name for host in world.hosts if host.living]
            world.violate("Liveness", f"{left} have not exited after {REST_S_MAX} s")
    if not world.violation:
        world.is_over = True
        world.stop_others()
        schedule.run(schedule.now_ns + 5 * NS)
    if world.coordinator is not None and not world.violation:
        world.coordinator.stop()
        schedule.run(schedule.now_ns + 10 * NS)
        if world.coordinator is not None:
            world.violate("Liveness", "the coordinator has not ended")
