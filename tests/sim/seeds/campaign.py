"""Runs seeds, one after the other or on several processors, and collects their results."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

from rallypoint.server.core.messages.errors import BrokenInvariant
from sim.keys.limits import limited
from sim.rules import liveness
from sim.rules.rules import Violation
from sim.seeds.coverage import Coverage
from sim.seeds.faults import Faults
from sim.shards.stand_ins import stand_ins
from sim.world.clock import Livelock
from sim.world.world import World


@dataclass(slots=True)
class Result:
    """The result of one seed."""

    seed: int
    failure: str
    """The failure; empty when there was none."""
    rule: str
    """The rule that was broken."""
    steps: int
    """Steps of the coordinator's core."""
    virtual_ms: int
    digest: str
    options: Faults
    """The options that the seed drew, and those that replaced them."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


def run_seed(
    seed: int, options: Mapping[str, str] | None = None, *, is_traced: bool = False
) -> Result:
    """Simulate one seed from its beginning to the end of all its jobs.

    Raises:
        ValueError: an option of `options` does not exist.
    """
    world = World(seed, options, is_traced=is_traced)
    failure = rule = ""
    try:
        with limited(world.keys.limits), stand_ins(world.fleet):
            world.clock.run_until(world.faults.until_ms)
            world.settle_down()
            liveness.settle(world)
            liveness.finish(world)
    except Violation as violation:
        failure, rule = str(violation), violation.rule
    except BrokenInvariant as broken:
        failure, rule = f"invariant: {broken}", "invariant"
    except Livelock as livelock:
        failure, rule = f"livelock: {livelock}", "livelock"
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} in {where.name}, line {where.lineno}: {error}"
        failure, rule = text, "crash"
        if is_traced:
            raise
    return Result(
        seed=seed,
        failure=f"at {world.clock.now_ms} ms: {failure}" if failure else "",
        rule=rule,
        steps=world.steps,
        virtual_ms=world.clock.now_ms,
        digest=world.digest,
        options=world.options,
        counts=world.coverage.counts,
        trace=world.trace or [],
    )


def run_seeds(
    seeds: Iterable[int], processors: int, options: Mapping[str, str] | None = None
) -> Iterator[Result]:
    """Yield the results of seeds in order; stopping early stops the rest."""
    run = partial(run_seed, options=options)
    if processors <= 1:
        yield from map(run, seeds)
        return
    with get_context("fork").Pool(processors) as pool:
        yield from pool.imap(run, seeds, chunksize=4)


@dataclass(slots=True)
class Summary:
    """The results of many seeds."""

    seeds: int = 0
    steps: int = 0
    virtual_ms: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    failures: list[Result] = field(default_factory=list)
    _began_s: float = field(default_factory=time.perf_counter)

    def add(self, result: Result) -> None:
        """Add the result of one seed."""
        self.seeds += 1
        self.steps += result.steps
        self.virtual_ms += result.virtual_ms
        self.coverage.counts.update(result.counts)
        if result.failure:
            self.failures.append(result)

    def elapsed_s(self) -> float:
        """Return the time so far."""
        return time.perf_counter() - self._began_s
