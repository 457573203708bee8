"""Runs seeds, one after the other or on several processors, and collects their results."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from rallypoint.server.core.messages.errors import BrokenInvariant
from sim.keys.limits import limited
from sim.rules import liveness
from sim.rules.rules import Violation
from sim.seeds.faults import Faults
from sim.shards.stand_ins import stand_ins
from sim.world.clock import Livelock
from sim.world.world import World
from support.tries.commit import find_commit

CRASHES = (AssertionError, LookupError, TypeError, ValueError, AttributeError)
"""Exceptions that end a seed as a crash does."""


@dataclass(slots=True)
class Result:
    """The result of one seed."""

    seed: int
    failure: str
    """The failure; empty when there was none."""
    rule: str
    """The rule that was broken."""
    steps: int
    """Steps of the coordinator's core, or turns of the event loops."""
    virtual_ms: int
    digest: str
    options: Faults | None = None
    """The options that the seed drew, and those that replaced them."""
    counts: Counter[Any] = field(default_factory=Counter)
    """How often what happened."""
    trace: list[str] = field(default_factory=list)


Run = Callable[..., Result]
"""Runs a seed, from its beginning to the end of all that it has; `is_traced` keeps its history."""


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
    except CRASHES as error:
        failure, rule = explain(error), "crash"
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


def explain(error: Exception) -> str:
    """Return what an exception was, and where it came from."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {where.name}, line {where.lineno}: {error}"


def run_seeds(seeds: Iterable[int], jobs: int, run: Run = run_seed) -> Iterator[Result]:
    """Yield the results of seeds in order; stopping early stops the rest."""
    if jobs <= 1:
        yield from map(run, seeds)
        return
    with get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(run, seeds, chunksize=4)


@dataclass(slots=True)
class Summary:
    """The results of many seeds."""

    seeds: int = 0
    steps: int = 0
    virtual_ms: int = 0
    counts: Counter[Any] = field(default_factory=Counter)
    failures: list[Result] = field(default_factory=list)
    _began_s: float = field(default_factory=time.perf_counter)

    def add(self, result: Result) -> None:
        """Add the result of one seed."""
        self.seeds += 1
        self.steps += result.steps
        self.virtual_ms += result.virtual_ms
        self.counts.update(result.counts)
        if result.failure:
            self.failures.append(result)

    def elapsed_s(self) -> float:
        """Return the time so far."""
        return time.perf_counter() - self._began_s


def check_seeds(run: Run, seeds: Iterable[int], arguments: str) -> Summary:
    """Run seeds in this process; return what they came to.

    One that has called gRPC may not fork, and other tests run beside this one.

    Args:
        run: runs one.
        seeds: which.
        arguments: of `run.py`, for the same.

    Raises:
        AssertionError: a seed has failed; it is the first.
    """
    summary = Summary()
    for result in run_seeds(seeds, 1, run):
        summary.add(result)
        if result.failure:
            options = f"with {result.options}\n" if result.options else ""
            raise AssertionError(
                f"seed {result.seed} at commit {find_commit()} failed {result.rule}: "
                f"{result.failure}\n{options}"
                f"reproduce: python tests/sim/run.py{arguments} --seeds {result.seed} --trace"
            )
    return summary
