"""Run seeds with the real shells: `python tests/sim/shells/run.py --seeds 0:2000 --jobs 2`.

`--seeds 17 --trace` prints the history of one seed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).parents[2])

from sim.run import commit
from sim.shells.loop import NS
from sim.shells.node import stand_ins
from sim.shells.world import World
from sim.world.clock import Livelock

REST_S_MAX = 180
"""How long the world may take to come to rest once faults have stopped."""
LOOK_S = 1
FAILURES_SHOWN_MAX = 20


@dataclass(slots=True)
class Result:
    """The result of one seed."""

    seed: int
    rule: str
    """The broken rule; empty when there was none."""
    failure: str
    virtual_ms: int
    turns: int
    digest: str
    events: Counter[str] = field(default_factory=Counter)
    """How often what happened, and how often a rule about time was applied."""
    trace: list[str] = field(default_factory=list)


def run_seed(
    seed: int,
    *,
    is_durable: bool | None = None,
    is_traced: bool = False,
    kind: type[World] = World,
) -> Result:
    """Run one seed from its beginning until every process has ended.

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
        except (AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            world.violate("Crash", f"{error!r} in {where.name}, line {where.lineno}")
            if is_traced:
                traceback.print_exc()
        rule, failure = world.violation or ("", "")
        digest, virtual_ms = world.digest, world.schedule.now_ms
        trace, world.trace = world.trace or [], None
        world.bury()
    events = Counter(world.events)
    events.update({f"rule {name}": count for name, count in world.rules.counts.items()})
    return Result(seed, rule, failure, virtual_ms, world.schedule.turns, digest, events, trace)


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


def run_seeds(
    seeds: Iterable[int], jobs: int, run: Callable[[int], Result] = run_seed
) -> Iterator[Result]:
    """Yield the results of seeds in order; stopping early stops the rest."""
    if jobs <= 1:
        yield from map(run, seeds)
        return
    with get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(run, seeds, chunksize=8)


def main() -> int:
    """Run the given seeds; return 1 if any failed."""
    parser = argparse.ArgumentParser(description="simulate the real shells on virtual time")
    parser.add_argument("--seeds", default="0:1000", help="one seed, or first:end (default 0:1000)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--relays", action="store_true", help="agents come through relays")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--counts", action="store_true", help="print how often what happened")
    parser.add_argument(
        "--keep-going", action="store_true", help="do not stop at the first failure"
    )
    args = parser.parse_args()
    first, _, end = args.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    run = run_seed
    if args.relays:
        from sim.relays.world import RelayedWorld

        run = partial(run_seed, kind=RelayedWorld)
    if args.trace:
        return _trace(seeds[0], run)
    began_s, failed, done, virtual_ms = time.perf_counter(), [], 0, 0
    events: Counter[str] = Counter()
    for result in run_seeds(seeds, args.jobs, run):
        done += 1
        virtual_ms += result.virtual_ms
        events.update(result.events)
        if result.rule:
            failed.append(result.seed)
            if len(failed) <= FAILURES_SHOWN_MAX:
                print(f"seed {result.seed} failed {result.rule}: {result.failure}", flush=True)
            if not args.keep_going:
                break
    took_s = time.perf_counter() - began_s
    if args.counts:
        for name, count in sorted(events.items()):
            print(f"  {name:40} {count}")
    print(
        f"{done} seeds in {took_s:.1f} s ({1000 * took_s / max(1, done):.0f} ms a seed), "
        f"{virtual_ms / 3_600_000:.1f} h simulated"
    )
    if failed:
        print(f"{len(failed)} failed: {failed[:FAILURES_SHOWN_MAX]} at commit {commit()}")
        print(f"reproduce: python tests/sim/shells/run.py --seeds {failed[0]} --trace")
    return 1 if failed else 0


def _trace(seed: int, run: Callable[..., Result]) -> int:
    result = run(seed, is_traced=True)
    for line in result.trace:
        print(line)
    print(result.rule or "passed", result.failure, f"digest {result.digest}")
    return 1 if result.rule else 0


if __name__ == "__main__":
    gc.freeze()
    sys.exit(main())
