"""Rounds per second of a fleet of jobs on one, two and three coordinators, and who used the cores.

All jobs re-form their rounds at once, as fast as they can. Their agents live in processes beside
the coordinators (`crowd.py`), on the same cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from harness.failure_figures import percentile
from journals.costs import FAILURES_MAX
from journals.stores import Place, Stores, await_owners, coordinator
from rallypoint.server.shards.hashing import shard_of
from rounds import STEP_S_MAX, read_cpu_s

KINDS = (("memory", 1), ("sqlite", 1), ("etcd", 1), ("etcd", 2), ("etcd", 3))
"""Stores and numbers of coordinators."""
SHARDS = 12
"""One, two and three coordinators can have the same number of them."""
JOBS = 2 * SHARDS
NODES = 8
"""Of each job."""
CROWDS = 2
"""Processes with agents: one would be a limit itself."""


@dataclass(slots=True)
class Pace:
    """What a fleet of jobs has reached."""

    store: str
    coordinators: int
    failures: int = 0
    """Measurements before this one, which failed."""
    rounds_per_s: list[float] = field(default_factory=list)
    round_ms: list[float] = field(default_factory=list)
    appends_per_round: list[float] = field(default_factory=list)
    coordinator_cores: list[list[float]] = field(default_factory=list)
    """Cores that each coordinator used, for each measurement."""
    store_cores: list[float] = field(default_factory=list)
    agent_cores: list[float] = field(default_factory=list)

    def cores(self) -> float:
        """Return how many cores were used."""
        of_all = zip(self.coordinator_cores, self.store_cores, self.agent_cores, strict=True)
        return statistics.median(sum(each) + store + agents for each, store, agents in of_all)


async def measure_fleets(stores: Stores, repeats: int, seconds: float) -> list[Pace]:
    """Measure each kind.

    Args:
        stores: makes a place for each.
        repeats: of each.
        seconds: of each repeat.
    """
    found = []
    for store, coordinators in KINDS:
        found.append(await _try_to_measure(store, coordinators, stores, repeats, seconds))
        print(f"fleet on {coordinators} with {store}", file=sys.stderr, flush=True)
    return found


async def _try_to_measure(
    store: str, coordinators: int, stores: Stores, repeats: int, seconds: float
) -> Pace:
    """Measure; again if it fails, as when the machine stood still for longer than a lease."""
    failures = 0
    while True:
        pace = Pace(store, coordinators, failures)
        try:
            await _measure(pace, stores.make(store), repeats, seconds)
        except Exception as error:
            failures += 1
            print(f"fleet on {coordinators} with {store} failed: {error!r}", file=sys.stderr)
            if failures == FAILURES_MAX:
                raise
        else:
            return pace


async def _measure(pace: Pace, place: Place, repeats: int, seconds: float) -> None:
    async with AsyncExitStack() as stack:
        flags = ("--shards", str(SHARDS)) if place.is_shared else ()
        served = [
            await stack.enter_async_context(coordinator(place, *flags))
            for _ in range(pace.coordinators)
        ]
        ports, pids = [port for port, _ in served], [pid for _, pid in served]
        owners = (
            await await_owners(ports) if place.is_shared else dict.fromkeys(range(SHARDS), ports[0])
        )
        crowds = [await stack.enter_async_context(_crowd(jobs, seconds)) for jobs in _share(owners)]
        agents = [crowd.pid for crowd in crowds]
        for _ in range(repeats):
            groups = [[pid] for pid in pids] + [list(place.pids), agents]
            before, appends = [_read_s(group) for group in groups], await place.appends()
            began_s = asyncio.get_running_loop().time()
            took_ms = await _repeat(crowds)
            took_s = asyncio.get_running_loop().time() - began_s
            *each, store, crowd = (
                (_read_s(group) - spent_s) / took_s
                for group, spent_s in zip(groups, before, strict=True)
            )
            pace.rounds_per_s.append(len(took_ms) / took_s)
            pace.round_ms += took_ms
            pace.appends_per_round.append((await place.appends() - appends) / len(took_ms))
            pace.coordinator_cores.append(each)
            pace.store_cores.append(store)
            pace.agent_cores.append(crowd)


def _share(owners: dict[int, int]) -> list[dict[str, int]]:
    """Return the jobs of each crowd with the ports of their owners; each shard has as many jobs.

    Args:
        owners: ports, by shard.
    """
    of_shard: dict[int, list[str]] = {shard: [] for shard in owners}
    for number in count():
        jobs = of_shard[shard_of(f"job-{number}", SHARDS)]
        if len(jobs) < JOBS // SHARDS:
            jobs.append(f"job-{number}")
        if all(len(jobs) == JOBS // SHARDS for jobs in of_shard.values()):
            break
    return [
        {
            job_id: owners[shard]
            for shard, jobs in of_shard.items()
            for at, job_id in enumerate(jobs)
            if at % CROWDS == crowd
        }
        for crowd in range(CROWDS)
    ]


@asynccontextmanager
async def _crowd(jobs: dict[str, int], seconds: float) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the agents of these jobs; their first rounds are there."""
    script = Path(__file__).with_name("crowd.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), json.dumps(jobs), str(NODES), str(seconds)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(script.parents[1])},
        limit=2**24,
    )
    try:
        await _read_line(process, STEP_S_MAX)
        yield process
    finally:
        process.kill()
        await process.wait()


async def _repeat(crowds: Sequence[asyncio.subprocess.Process]) -> list[float]:
    """Let all jobs re-form rounds; return how long each took, in ms."""
    for crowd in crowds:
        assert crowd.stdin is not None
        crowd.stdin.write(b"\n")
    lines = await asyncio.gather(*(_read_line(crowd, 2 * STEP_S_MAX) for crowd in crowds))
    return [took_ms for line in lines for took_ms in json.loads(line)]


async def _read_line(process: asyncio.subprocess.Process, limit_s: float) -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(limit_s):
        line = await process.stdout.readline()
    if not line:
        raise RuntimeError("the agents have failed")
    return line


def _read_s(pids: Sequence[int]) -> float:
    return sum(map(read_cpu_s, pids))


def render_fleets(found: Sequence[Pace]) -> str:
    """Return the table of all kinds."""
    lines = [
        f"| {JOBS} jobs of {NODES} nodes | coordinators | rounds a second "
        "| a round, ms: median, p99 | appends a round "
        "| cores: each coordinator | etcd | agents | all | failed |",
        "|---" * 10 + "|",
    ]
    for pace in found:
        each = [statistics.median(one) for one in zip(*pace.coordinator_cores, strict=True)]
        rates = pace.rounds_per_s
        cells = [
            pace.store,
            str(pace.coordinators),
            f"{statistics.median(rates):.0f} ({min(rates):.0f}-{max(rates):.0f})",
            f"{statistics.median(pace.round_ms):.0f}, {percentile(pace.round_ms, 99):.0f}",
            f"{statistics.median(pace.appends_per_round):.1f}",
            ", ".join(f"{one:.2f}" for one in each),
            f"{statistics.median(pace.store_cores):.2f}",
            f"{statistics.median(pace.agent_cores):.2f}",
            f"{pace.cores():.2f}",
            str(pace.failures),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
