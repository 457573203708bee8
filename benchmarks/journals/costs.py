"""What rounds and idling cost with each store, which take turns."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from journals.stores import Place, Stores, await_owners, coordinator
from nodes.processes import Crowd
from rounds import Times, form_rounds, idle_cpu_percent, read_cpu_s, read_rss_mb

FAILURES_MAX = 3


@dataclass(slots=True)
class Cost:
    """What was measured with one store and one number of nodes."""

    nodes: int
    store: str
    times: Times = field(default_factory=Times)
    appends: list[int] = field(default_factory=list)
    """Batches that were written in a first round and its re-formings."""
    idle_appends: list[int] = field(default_factory=list)
    idle_cpu_percent: list[float] = field(default_factory=list)
    store_cpu_ms: list[float] = field(default_factory=list)
    """Of the processes of the store, for a first round and its re-formings."""
    rss_mb: list[float] = field(default_factory=list)
    failures: int = 0
    """Measurements that failed; the rounds before that count. After the third there are no more."""


async def measure(
    stores: Stores, nodes: int, names: Sequence[str], runs: int, rounds: int, idle_s: float
) -> list[Cost]:
    """Measure one number of nodes with every store in turn.

    Args:
        stores: makes a new place for each measurement.
        nodes: how many simulated agents.
        names: of the stores.
        runs: of each.
        rounds: how many times each run re-forms its round.
        idle_s: how long each store idles once.
    """
    costs = [Cost(nodes, name) for name in names]
    for run in range(runs):
        # Each store is the first one in turn: who comes later may find a warmer machine.
        turn = run % len(costs)
        for cost in (*costs[turn:], *costs[:turn]):
            await _try_to_measure(cost, stores, rounds, idle_s if run == 0 else 0.0)
        print(f"{nodes} nodes: run {run + 1} of {runs}", file=sys.stderr, flush=True)
    return costs


async def _try_to_measure(cost: Cost, stores: Stores, rounds: int, idle_s: float) -> None:
    """Measure; again if it fails, as when the machine stood still for longer than a lease."""
    while cost.failures < FAILURES_MAX:
        try:
            await _measure_once(cost, stores.make(cost.store), rounds, idle_s)
        except Exception as error:  # noqa: BLE001  # it is shown and counted
            cost.failures += 1
            print(f"{cost.nodes} nodes with {cost.store} failed: {error!r}", file=sys.stderr)
        else:
            return


async def _measure_once(cost: Cost, place: Place, rounds: int, idle_s: float) -> None:
    """Form rounds with one store, then idle."""
    async with coordinator(place) as (port, pid):

        async def idle(crowd: Crowd) -> None:
            cost.store_cpu_ms.append((_read_all_s(place) - spent_s) * 1000)
            cost.appends.append(await place.appends() - appends)
            if idle_s:
                before = await place.appends()
                cost.idle_cpu_percent.append(await idle_cpu_percent(pid, idle_s))
                cost.idle_appends.append(await place.appends() - before)
            cost.rss_mb.append(read_rss_mb(pid))

        if place.is_shared:
            await await_owners([port])
        appends, spent_s = await place.appends(), _read_all_s(place)
        await form_rounds(port, pid, cost.nodes, rounds, cost.times, marked=False, afterwards=idle)


def _read_all_s(place: Place) -> float:
    return sum(map(read_cpu_s, place.pids))


def ratio(cost: Cost, memory: Cost) -> float:
    """Return how much longer a round takes than with memory, by the medians."""
    return _divide(cost.times.again_ms, memory.times.again_ms)


def cpu_ratio(cost: Cost, memory: Cost) -> float:
    """Return how much more processor time of the coordinator a round takes, by the medians."""
    return _divide(cost.times.again_cpu_ms, memory.times.again_cpu_ms)


def _divide(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the ratio of the medians; not a number when one was not measured."""
    if not values or not others:
        return math.nan
    return statistics.median(values) / statistics.median(others)


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return median and range."""
    if not values:
        return "-"
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def render(found: list[Cost]) -> str:
    """Return the table of all stores."""
    lines = [
        "| nodes | store | first round, ms | CPU, ms | round again, ms | to memory's "
        "| CPU, ms | to memory's | appends of all | CPU of the store, ms | idle CPU, % "
        "| idle appends | RSS, MB | failed |",
        "|---" * 14 + "|",
    ]
    memories = {cost.nodes: cost for cost in found if cost.store == "memory"}
    for cost in found:
        times, memory = cost.times, memories[cost.nodes]
        cells = [
            str(cost.nodes),
            cost.store,
            spread(times.first_ms),
            spread(times.first_cpu_ms),
            spread(times.again_ms),
            f"{ratio(cost, memory):.2f}",
            spread(times.again_cpu_ms),
            f"{cpu_ratio(cost, memory):.2f}",
            spread(cost.appends),
            spread(cost.store_cpu_ms),
            spread(cost.idle_cpu_percent, 1),
            spread(cost.idle_appends),
            spread(cost.rss_mb),
            str(cost.failures),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
