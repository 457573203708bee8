"""What a journal on the disk costs: rounds beside a coordinator that keeps nothing.

Simulated agents (real gRPC streams) form a first round and re-form it after a failure, against a
real coordinator process. The stores take turns.

    python benchmarks/journal.py --json benchmarks/results/journal.json
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from harness.program import Wrong, make_parser, run
from harness.results import Results
from nodes.forming import coordinator, form_rounds, server
from nodes.processes import agents, raise_file_limit

TABLE = "journal"
STORES = ("memory", "SQLite")


async def measure_store(nodes: int, store: str, rounds: int, results: Results) -> None:
    """Form rounds with one store, which has nothing in it.

    Args:
        nodes: how many agents.
        store: one of STORES.
        rounds: how many times the round is re-formed.
        results: get a row.
    """
    row = f"{nodes:,} nodes, {store}"
    with tempfile.TemporaryDirectory(prefix="journal-") as folder:
        state = "memory" if store == "memory" else f"sqlite:{folder}/journal"
        async with (
            server(*coordinator(f"--state={state}")) as one,
            agents(one.target, nodes) as crowd,
        ):
            await form_rounds(crowd, one, rounds, results, TABLE, row)
            results.add(TABLE, row, "memory", "MB", one.rss_mb())


async def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Measure every size with both stores in turn; each is the first one in turn."""
    raise_file_limit(max(arguments.nodes))
    for number in range(arguments.runs):
        for nodes in arguments.nodes:
            for store in STORES if number % 2 == 0 else reversed(STORES):
                await measure_store(nodes, store, arguments.rounds, results)
        results.write()
        print(f"run {number + 1} of {arguments.runs}", file=sys.stderr, flush=True)
    return ()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("Measure what a journal costs.")
    sizes = [64, 256, 1024]
    parser.add_argument("--nodes", type=int, nargs="+", default=sizes, help=f"default: {sizes}")
    parser.add_argument("--runs", type=int, default=4, help="of everything (default: 4)")
    parser.add_argument("--rounds", type=int, default=6, help="re-formings a run (default: 6)")
    return parser.parse_args()


if __name__ == "__main__":
    run(measure, parse_arguments())
