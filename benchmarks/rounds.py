"""How the coordinator's cost grows with the number of nodes, with and without relays.

N simulated agents (real gRPC streams, in processes of up to 1,024) form a first round and re-form
it after a failure, against a real coordinator process. Then they idle, at the heartbeat interval
that it sets. The same with 64 agents on each stream, as relays carry them. At last one rack of 64
goes through a real relay.

    python benchmarks/rounds.py --json benchmarks/results/rounds.json
"""

from __future__ import annotations

import argparse
import sys

from harness.program import Wrong, make_parser, run
from harness.results import Results
from nodes.forming import BIN, Server, coordinator, form_rounds, server
from nodes.processes import agents, raise_file_limit
from nodes.rack import racked_agents

TABLE, RELAY = "rounds", "one rack"
IDLE, MEMORY = "CPU when idle", "memory"
DIRECT, RELAYED = "64 nodes, directly", "64 nodes, through a relay"
RELAY_CPU, RELAY_MEMORY = "CPU time of the relay for all of it", "memory of the relay"
RACK = 64
"""Nodes of one rack."""


async def measure_size(
    nodes: int, per_rack: int, rounds: int, idle_s: float, results: Results
) -> None:
    """Let one coordinator form rounds, then idle.

    Args:
        nodes: how many agents.
        per_rack: how many of them share a stream; 1: none.
        rounds: how many times the round is re-formed.
        idle_s: how long it idles afterwards.
        results: get a row.
    """
    row = f"{nodes:,} nodes" + (f", {per_rack} on a stream" if per_rack > 1 else "")

    async def then_idle(one: Server) -> None:
        results.add(TABLE, row, IDLE, "% of a core", await one.idle_percent(idle_s))
        results.add(TABLE, row, MEMORY, "MB", one.rss_mb())

    async with server(*coordinator()) as one:
        if per_rack == 1:
            async with agents(one.target, nodes) as crowd:
                await form_rounds(crowd, one, rounds, results, TABLE, row)
                await then_idle(one)
        else:
            async with racked_agents(one.target, nodes, per_rack) as racks:
                await form_rounds(racks, one, rounds, results, TABLE, row)
                await then_idle(one)


async def measure_relay(nodes: int, rounds: int, results: Results) -> None:
    """Measure one rack, directly and through a real relay."""
    async with server(*coordinator()) as one, agents(one.target, nodes) as crowd:
        await form_rounds(crowd, one, rounds, results, RELAY, DIRECT)
    async with server(*coordinator()) as one:
        command = (str(BIN / "rallypoint"), "relay", f"--coordinator={one.target}")
        async with server(*command, "--log-level=error") as relay:
            spent_s = relay.cpu_s()
            async with agents(relay.target, nodes) as crowd:
                await form_rounds(crowd, one, rounds, results, RELAY, RELAYED)
            results.add(RELAY, RELAYED, RELAY_CPU, "ms", (relay.cpu_s() - spent_s) * 1000)
            results.add(RELAY, RELAYED, RELAY_MEMORY, "MB", relay.rss_mb())


async def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Measure every size, with and without racks in turn."""
    raise_file_limit(max(arguments.nodes))
    for number in range(arguments.runs):
        for nodes in sorted(arguments.nodes):
            await measure_size(nodes, 1, arguments.rounds, arguments.idle, results)
            if nodes > RACK:
                await measure_size(nodes, RACK, arguments.rounds, arguments.idle, results)
            print(f"run {number + 1}: {nodes} nodes", file=sys.stderr, flush=True)
        if arguments.relay:
            await measure_relay(min(RACK, max(arguments.nodes)), arguments.rounds, results)
        results.write()
    return ()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("Measure what rounds cost as nodes are added.")
    sizes = [64, 256, 1024, 4096]
    parser.add_argument("--nodes", type=int, nargs="+", default=sizes, help=f"default: {sizes}")
    parser.add_argument("--runs", type=int, default=3, help="of everything (default: 3)")
    parser.add_argument("--rounds", type=int, default=4, help="re-formings a run (default: 4)")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds of idling (default: 5)")
    parser.add_argument("--no-relay", dest="relay", action="store_false", help="no real relay")
    return parser.parse_args()


if __name__ == "__main__":
    run(measure, parse_arguments())
