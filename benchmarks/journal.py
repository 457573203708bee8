"""What a journal costs: rounds and idling with each store, fleets of jobs, the file afterwards.

Simulated agents (real gRPC streams, all in this process) form a first round and re-form it after a
failure, against a real coordinator process. The stores take turns: memory, SQLite, and an etcd of
three members, which are processes of this machine and sync each change to its disk. Then a fleet of
jobs re-forms its rounds as fast as it can, on one, two and three coordinators. At last a few agents
re-form a round 10,000 times with SQLite; the coordinator is killed and started again from what it
wrote.

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
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from journals.costs import FAILURES_MAX, Cost, measure, ratio, render
from journals.fleets import Pace, measure_fleets, render_fleets
from journals.long import Long, measure_long, median_start_s, render_long
from journals.stores import STORES, Stores, stores
from launch import describe_machine

RATIO_MAX = {"sqlite": 1.3, "etcd": 2.0}
"""Most that a round may cost, with RATIO_NODES nodes, as a multiple of memory."""
RATIO_NODES = 256
FILE_MB_MAX = 20.0
START_S_MAX = 1.0


@dataclass(slots=True)
class Found:
    """What was measured so far."""

    costs: list[Cost] = field(default_factory=list)
    fleets: list[Pace] = field(default_factory=list)
    long: Long | None = None


def check(found: Found) -> list[str]:
    """Return the bars that were missed."""
    missed = []
    memories = {cost.nodes: cost for cost in found.costs if cost.store == "memory"}
    for cost in found.costs:
        if cost.failures == FAILURES_MAX:
            missed.append(f"{cost.nodes} nodes with {cost.store} cannot be measured")
        most = RATIO_MAX.get(cost.store)
        if cost.nodes == RATIO_NODES and most is not None:
            times = ratio(cost, memories[cost.nodes])
            if times > most:
                missed.append(f"a round with {cost.store} takes {times:.2f} times memory's")
    if found.long is not None:
        if max(found.long.file_mb) > FILE_MB_MAX:
            missed.append(f"the files have {max(found.long.file_mb):.1f} MB")
        if median_start_s(found.long) > START_S_MAX:
            missed.append(f"a start takes {median_start_s(found.long):.2f} s")
    return missed


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure what a journal costs.")
    sizes = [64, 256, 1024]
    parser.add_argument("--nodes", type=int, nargs="*", default=sizes, help=f"default: {sizes}")
    parser.add_argument("--runs", type=int, default=3, help="runs with each store (default: 3)")
    parser.add_argument("--rounds", type=int, default=6, help="re-formings a run (default: 6)")
    parser.add_argument(
        "--idle", type=float, default=5.0, help="seconds that each store idles once (default: 5)"
    )
    default = [store for store in STORES if store != "etcd-1"]
    parser.add_argument(
        "--stores",
        nargs="+",
        choices=STORES,
        default=default,
        help=f"etcd has three members, etcd-1 has one (default: {default})",
    )
    parser.add_argument(
        "--fleet", type=float, default=5.0, help="seconds of each fleet; 0: none (default: 5)"
    )
    parser.add_argument("--fleet-runs", type=int, default=2, help="of each fleet (default: 2)")
    parser.add_argument("--long-rounds", type=int, default=10_000, help="0: none (default: 10000)")
    parser.add_argument("--long-nodes", type=int, default=16, help="of these rounds (default: 16)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    if arguments.stores[0] != "memory":
        parser.error("the first store is memory, to compare with")
    return arguments


async def measure_all(arguments: argparse.Namespace, places: Stores, found: Found) -> None:
    """Measure, and print each table as soon as it is there."""
    for nodes in arguments.nodes:
        found.costs += await measure(
            places, nodes, arguments.stores, arguments.runs, arguments.rounds, arguments.idle
        )
        print(render(found.costs[-len(arguments.stores) :]), end="\n\n", flush=True)
    if arguments.fleet:
        found.fleets += await measure_fleets(places, arguments.fleet_runs, arguments.fleet)
        print(render_fleets(found.fleets), end="\n\n", flush=True)
    if arguments.long_rounds:
        found.long = await measure_long(places, arguments.long_nodes, arguments.long_rounds)
        print(render_long(found.long), end="\n\n", flush=True)


async def measure_and_print(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    began_s, found = time.monotonic(), Found()
    report = {
        **describe_machine(),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
    }
    print("\n".join(f"- {name}: {value}" for name, value in report.items()), end="\n\n", flush=True)
    with stores() as places:
        await measure_all(arguments, places, found)
    print(f"took {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({**report, **asdict(found)}, indent=2) + "\n")
    missed = check(found)
    print("\n".join(f"MISSED: {text}" for text in missed) or "every bar was met", flush=True)
    return 1 if missed else 0


def main() -> NoReturn:
    """Measure and print."""
    # gRPC's C core writes a line for each connection that a coordinator's end closes.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # However it is ended, no coordinator, no etcd and no file is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = asyncio.run(measure_and_print(parse_arguments()))
    # Skip the end of the interpreter: grpc.aio has been seen to hang there after a thousand
    # channels, with all of them closed.
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
