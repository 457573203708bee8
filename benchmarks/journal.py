"""What a journal on the disk costs: rounds and idling beside a coordinator that keeps nothing.

Simulated agents (real gRPC streams) form a first round and re-form it after a failure, against a
real coordinator process. The stores take turns.

    python benchmarks/journal.py --json benchmarks/results/journal.json
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from harness.results import Results
from harness.tables import render_results
from nodes.forming import Times, form_rounds, read_rss_mb, server
from nodes.processes import Crowd, raise_file_limit

TABLE = "journal"
STORES = ("memory", "SQLite")


async def measure(nodes: int, store: str, rounds: int, results: Results) -> None:
    """Form rounds with one store, which has nothing in it.

    Args:
        nodes: how many agents.
        store: one of STORES.
        rounds: how many times the round is re-formed.
        results: get a row.
    """
    row, times = f"{nodes:,} nodes, {store}", Times()
    with tempfile.TemporaryDirectory(prefix="journal-") as folder:
        state = "memory" if store == "memory" else f"sqlite:{folder}/journal"
        binary = str(Path(sys.executable).with_name("coordinator"))
        flags = ("--host=127.0.0.1", "--port=0", "--log-level=error", "--startup-window=0")
        async with server(binary, *flags, f"--state={state}") as (port, pid):

            async def weigh(_: Crowd) -> None:
                results.add(TABLE, row, "memory", "MB", read_rss_mb(pid))

            await form_rounds(port, pid, nodes, rounds, times, afterwards=weigh)
    results.add(TABLE, row, "first round", "ms", *times.first_ms)
    results.add(TABLE, row, "its CPU time", "ms", *times.first_cpu_ms)
    results.add(TABLE, row, "round again", "ms", *times.again_ms)
    results.add(TABLE, row, "CPU time of that", "ms", *times.again_cpu_ms)


async def measure_all(arguments: argparse.Namespace, results: Results) -> None:
    """Measure every size with both stores in turn; each is the first one in turn."""
    for number in range(arguments.runs):
        for nodes in arguments.nodes:
            for store in STORES if number % 2 == 0 else reversed(STORES):
                await measure(nodes, store, arguments.rounds, results)
        results.write()
        print(f"run {number + 1} of {arguments.runs}", file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure what a journal costs.")
    sizes = [64, 256, 1024]
    parser.add_argument("--nodes", type=int, nargs="+", default=sizes, help=f"default: {sizes}")
    parser.add_argument("--runs", type=int, default=4, help="of everything (default: 4)")
    parser.add_argument("--rounds", type=int, default=6, help="re-formings a run (default: 6)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples here")
    return parser.parse_args()


def main() -> NoReturn:
    """Measure and print."""
    arguments = parse_arguments()
    # However it is ended, no coordinator and no file is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise_file_limit(max(arguments.nodes))
    results = Results(arguments.json)
    asyncio.run(measure_all(arguments, results))
    print(render_results(results))
    # Skip the end of the interpreter: closing a thousand channels takes grpc.aio minutes.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
