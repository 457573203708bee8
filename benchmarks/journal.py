"""What a journal costs: rounds and idling with each store, then the file after 10,000 rounds.

Simulated agents (real gRPC streams, all in this process) form a first round and re-form it after a
failure, against a real coordinator process. The stores take turns, so each run has one figure of
each, and the ratio is that of the same run. Then a few agents re-form a round 10,000 times with
SQLite; the coordinator is killed and started again from what it wrote.

    python benchmarks/journal.py
    python benchmarks/journal.py --nodes 64 --runs 2 --long-rounds 500
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from crashes.lives import Disk
from harness.swarm import SimulatedAgent, Traffic, open_channel
from launch import describe_machine
from rounds import (
    STEP_S_MAX,
    WINDOW_S,
    Gathering,
    Times,
    form_rounds,
    idle_cpu_percent,
    read_rss_mb,
    server,
)

RATIO_MAX = {"sqlite": 1.3, "etcd": 2.0}
"""Most that a round may cost, with RATIO_NODES nodes, as a multiple of memory."""
RATIO_NODES = 256
FILE_MB_MAX = 20.0
START_S_MAX = 1.0
LONG_NODES = 16
LONG_CHUNK = 500
"""Rounds between two looks at the file."""
STARTS = 5


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
    rss_mb: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Long:
    """What became of the file after many rounds."""

    rounds: int
    file_mb: list[float] = field(default_factory=list)
    """Size of all files, every 500 rounds."""
    rss_mb: list[float] = field(default_factory=list)
    round_ms: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    """From the start of the process until it listens, with what was written."""
    empty_starts_s: list[float] = field(default_factory=list)
    """The same with nothing, as a comparison."""


def command(state: str) -> tuple[str, ...]:
    """Return the command line of a coordinator."""
    binary = Path(sys.executable).with_name("coordinator")
    flags = ("--host", "127.0.0.1", "--port", "0", "--log-level", "error")
    return (str(binary), *flags, "--state", state)


@asynccontextmanager
async def place(store: str) -> AsyncIterator[str]:
    """Yield a --state with nothing in it; remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="journal-") as folder:
        yield "memory" if store == "memory" else f"sqlite:{folder}/journal/journal.sqlite"


async def measure_once(cost: Cost, rounds: int, idle_s: float) -> None:
    """Form rounds with one store, then idle."""
    async with place(cost.store) as state, server(*command(state)) as (port, pid):

        async def idle() -> None:
            cost.appends.append(disk.appends())
            if idle_s:
                cost.idle_cpu_percent.append(await idle_cpu_percent(pid, idle_s))
            cost.idle_appends.append(disk.appends() - cost.appends[-1])
            cost.rss_mb.append(read_rss_mb(pid))

        disk = Disk(state)
        await asyncio.sleep(WINDOW_S)
        await form_rounds(
            port, pid, cost.nodes, rounds, cost.times, Traffic(), marked=False, afterwards=idle
        )


async def measure(arguments: argparse.Namespace) -> list[Cost]:
    """Measure every size with every store in turn."""
    found: list[Cost] = []
    for nodes in arguments.nodes:
        costs = [Cost(nodes, store) for store in arguments.stores]
        for run in range(arguments.runs):
            for cost in costs if run % 2 == 0 else reversed(costs):
                await measure_once(cost, arguments.rounds, arguments.idle)
        found += costs
        print(f"measured {nodes} nodes", file=sys.stderr, flush=True)
    return found


async def measure_long(rounds: int) -> Long:
    """Form very many rounds; look at the file, and start from it."""
    found = Long(rounds)
    async with place("sqlite") as state:
        disk = Disk(state)
        async with server(*command(state)) as (port, pid):
            await _form_many(port, pid, found, disk)
            os.kill(pid, signal.SIGKILL)
        for _ in range(STARTS):
            found.starts_s.append(await _time_start(state))
            async with place("sqlite") as empty:
                found.empty_starts_s.append(await _time_start(empty))
    return found


async def _time_start(state: str) -> float:
    """Return how long a coordinator takes until it listens."""
    began_s = time.perf_counter()
    async with server(*command(state)) as (_, pid):
        took_s = time.perf_counter() - began_s
        os.kill(pid, signal.SIGKILL)
    return took_s


async def _form_many(port: int, pid: int, found: Long, disk: Disk) -> None:
    gathering = Gathering(LONG_NODES)
    agents = [
        SimulatedAgent(
            number, LONG_NODES, Traffic(), gathering.one, marked=False, restarts=found.rounds + 1
        )
        for number in range(LONG_NODES)
    ]
    channels = [open_channel(port) for _ in agents]
    async with asyncio.TaskGroup() as lives:
        tasks = [
            lives.create_task(agent.live(channel))
            for agent, channel in zip(agents, channels, strict=True)
        ]
        await gathering.all()
        for number in range(found.rounds):
            began_s = time.perf_counter()
            await agents[number % LONG_NODES].fail()
            await gathering.all()
            found.round_ms.append((time.perf_counter() - began_s) * 1000)
            if (number + 1) % LONG_CHUNK == 0 or number + 1 == found.rounds:
                found.file_mb.append(disk.size() / 1e6)
                found.rss_mb.append(read_rss_mb(pid))
        for task in tasks:
            task.cancel()
    async with asyncio.timeout(STEP_S_MAX):
        await asyncio.gather(*(channel.close() for channel in channels))


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return median and range."""
    if not values:
        return "-"
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def ratio(cost: Cost, memory: Cost) -> float:
    """Return how much longer a round takes than with memory, by the medians."""
    return statistics.median(cost.times.again_ms) / statistics.median(memory.times.again_ms)


def render(found: list[Cost]) -> str:
    """Return the table of all stores."""
    lines = [
        "| nodes | store | first round, ms | CPU, ms | round again, ms | to memory's "
        "| CPU, ms | to memory's | appends of both | idle CPU, % | idle appends | RSS, MB |",
        "|---" * 12 + "|",
    ]
    memories = {cost.nodes: cost for cost in found if cost.store == "memory"}
    for cost in found:
        times, memory = cost.times, memories[cost.nodes]
        spent = statistics.median(times.again_cpu_ms)
        cells = [
            str(cost.nodes),
            cost.store,
            spread(times.first_ms),
            spread(times.first_cpu_ms),
            spread(times.again_ms),
            f"{ratio(cost, memory):.2f}",
            spread(times.again_cpu_ms),
            f"{spent / statistics.median(memory.times.again_cpu_ms):.2f}",
            spread(cost.appends),
            spread(cost.idle_cpu_percent, 1),
            spread(cost.idle_appends),
            spread(cost.rss_mb),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def render_long(found: Long) -> str:
    """Return what many rounds have left."""
    tenth = max(1, len(found.round_ms) // 10)
    rows = {
        f"rounds with {LONG_NODES} nodes": str(found.rounds),
        "a round, ms: the first tenth": spread(found.round_ms[:tenth], 1),
        "the last tenth": spread(found.round_ms[-tenth:], 1),
        "files, MB: largest, last": f"{max(found.file_mb):.2f}, {found.file_mb[-1]:.2f}",
        "RSS, MB: first look, last": f"{found.rss_mb[0]:.0f}, {found.rss_mb[-1]:.0f}",
        "start until it listens, s": spread(found.starts_s, 2),
        "the same with an empty journal, s": spread(found.empty_starts_s, 2),
    }
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())]
    )


def check(costs: list[Cost], long: Long | None) -> list[str]:
    """Return the bars that were missed."""
    missed = []
    memories = {cost.nodes: cost for cost in costs if cost.store == "memory"}
    for cost in costs:
        most = RATIO_MAX.get(cost.store)
        if cost.nodes == RATIO_NODES and most is not None:
            found = ratio(cost, memories[cost.nodes])
            if found > most:
                missed.append(f"a round with {cost.store} takes {found:.2f} times memory's")
    if long is not None:
        if max(long.file_mb) > FILE_MB_MAX:
            missed.append(f"the files have {max(long.file_mb):.1f} MB")
        if statistics.median(long.starts_s) > START_S_MAX:
            missed.append(f"a start takes {statistics.median(long.starts_s):.2f} s")
    return missed


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure what a journal costs.")
    sizes = [64, 256, 1024]
    parser.add_argument("--nodes", type=int, nargs="*", default=sizes, help=f"default: {sizes}")
    parser.add_argument("--runs", type=int, default=5, help="runs with each store (default: 5)")
    parser.add_argument("--rounds", type=int, default=5, help="re-formings a run (default: 5)")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of idling (default: 10)")
    stores = ["memory", "sqlite"]
    parser.add_argument("--stores", nargs="+", choices=stores, default=stores)
    parser.add_argument("--long-rounds", type=int, default=10_000, help="0: none (default: 10000)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    if arguments.stores[0] != "memory":
        parser.error("the first store is memory, to compare with")
    return arguments


async def measure_and_print(arguments: argparse.Namespace) -> int:
    """Measure, then print; return the exit code."""
    began, load = datetime.now(UTC), os.getloadavg()[0]
    costs = await measure(arguments)
    long = await measure_long(arguments.long_rounds) if arguments.long_rounds else None
    report = {
        **describe_machine(),
        "load before": f"{load:.1f}",
        "date": began.isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
    }
    print("\n".join(f"- {name}: {value}" for name, value in report.items()), end="\n\n")
    if costs:
        print(render(costs), end="\n\n")
    if long is not None:
        print(render_long(long), end="\n\n")
    if arguments.json is not None:
        figures = {"costs": [asdict(cost) for cost in costs], "long": long and asdict(long)}
        arguments.json.write_text(json.dumps({**report, **figures}, indent=2) + "\n")
    missed = check(costs, long)
    print("\n".join(f"MISSED: {text}" for text in missed) or "every bar was met", flush=True)
    return 1 if missed else 0


def main() -> NoReturn:
    """Measure and print."""
    code = asyncio.run(measure_and_print(parse_arguments()))
    # Skip the end of the interpreter: grpc.aio has been seen to hang there after a thousand
    # channels, with all of them closed.
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
