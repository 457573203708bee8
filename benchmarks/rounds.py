"""How the coordinator's cost grows with the number of nodes, with and without relays.

N simulated agents (real gRPC streams, in processes of up to 1,024) form a first round and re-form
it after a failure, against a real coordinator process. Then they idle, at the heartbeat interval
that it sets. The same with 64 agents on each stream, as relays carry them. At last one rack of 64
goes through a real relay.

    python benchmarks/rounds.py --json benchmarks/results/rounds.json
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import NoReturn

from harness.results import Results
from harness.tables import render_results
from nodes.forming import (
    WINDOW_S,
    Times,
    form_rounds,
    idle_cpu_percent,
    read_cpu_s,
    read_rss_mb,
    server,
)
from nodes.processes import Crowd, raise_file_limit
from racks.forming import form_racks

TABLE, RELAY = "rounds", "one rack"
FIRST, FIRST_CPU = "first round", "its CPU time"
AGAIN, AGAIN_CPU = "round again", "CPU time of that"
IDLE, MEMORY = "CPU when idle", "memory"
DIRECT, RELAYED = "64 nodes, directly", "64 nodes, through a relay"
RELAY_CPU, RELAY_MEMORY = "CPU time of the relay for all of it", "memory of the relay"
RACK = 64
"""Nodes of one rack."""
BIN = Path(sys.executable).parent


def coordinator() -> tuple[str, ...]:
    """Return the command of a coordinator without a journal on the disk."""
    return (str(BIN / "coordinator"), "--host=127.0.0.1", "--port=0", "--log-level=error")


def add_times(results: Results, table: str, row: str, times: Times) -> None:
    """Add what rounds took."""
    results.add(table, row, FIRST, "ms", *times.first_ms)
    results.add(table, row, FIRST_CPU, "ms", *times.first_cpu_ms)
    results.add(table, row, AGAIN, "ms", *times.again_ms)
    results.add(table, row, AGAIN_CPU, "ms", *times.again_cpu_ms)


async def measure(nodes: int, per_rack: int, rounds: int, idle_s: float, results: Results) -> None:
    """Let one coordinator form rounds, then idle.

    Args:
        nodes: how many agents.
        per_rack: how many of them share a stream; 1: none.
        rounds: how many times the round is re-formed.
        idle_s: how long it idles afterwards.
        results: get a row.
    """
    row = f"{nodes:,} nodes" + (f", {per_rack} on a stream" if per_rack > 1 else "")
    times = Times()
    async with server(*coordinator()) as (port, pid):

        async def idle(_: Crowd | None = None) -> None:
            percent = await idle_cpu_percent(pid, idle_s)
            add_times(results, TABLE, row, times)
            results.add(TABLE, row, IDLE, "% of a core", percent)
            results.add(TABLE, row, MEMORY, "MB", read_rss_mb(pid))

        await asyncio.sleep(WINDOW_S)
        if per_rack == 1:
            await form_rounds(port, pid, nodes, rounds, times, afterwards=idle)
        else:
            await form_racks(
                port=port,
                pid=pid,
                nodes=nodes,
                per_rack=per_rack,
                rounds=rounds,
                times=times,
                afterwards=idle,
            )


async def measure_relay(nodes: int, rounds: int, results: Results) -> None:
    """Measure one rack, directly and through a real relay."""
    direct, relayed = Times(), Times()
    async with server(*coordinator()) as (port, pid):
        await asyncio.sleep(WINDOW_S)
        await form_rounds(port, pid, nodes, rounds, direct)
    async with server(*coordinator()) as (port, pid):
        relay = (str(BIN / "rallypoint"), "relay", f"--coordinator=127.0.0.1:{port}")
        async with server(*relay, "--host=127.0.0.1", "--port=0", "--log-level=error") as (at, own):
            await asyncio.sleep(WINDOW_S)
            spent_s = read_cpu_s(own)
            await form_rounds(at, pid, nodes, rounds, relayed)
            spent_ms = (read_cpu_s(own) - spent_s) * 1000
            memory_mb = read_rss_mb(own)
    for row, times in ((DIRECT, direct), (RELAYED, relayed)):
        results.add(RELAY, row, FIRST, "ms", *times.first_ms)
        results.add(RELAY, row, AGAIN, "ms", *times.again_ms)
    results.add(RELAY, RELAYED, RELAY_CPU, "ms", spent_ms)
    results.add(RELAY, RELAYED, RELAY_MEMORY, "MB", memory_mb)


async def measure_all(arguments: argparse.Namespace, results: Results) -> None:
    """Measure every size, with and without racks in turn."""
    for number in range(arguments.runs):
        for nodes in sorted(arguments.nodes):
            await measure(nodes, 1, arguments.rounds, arguments.idle, results)
            if nodes > RACK:
                await measure(nodes, RACK, arguments.rounds, arguments.idle, results)
            print(f"run {number + 1}: {nodes} nodes", file=sys.stderr, flush=True)
        if arguments.relay:
            await measure_relay(min(RACK, max(arguments.nodes)), arguments.rounds, results)
        results.write()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure what rounds cost as nodes are added.")
    sizes = [64, 256, 1024, 4096]
    parser.add_argument("--nodes", type=int, nargs="+", default=sizes, help=f"default: {sizes}")
    parser.add_argument("--runs", type=int, default=3, help="of everything (default: 3)")
    parser.add_argument("--rounds", type=int, default=4, help="re-formings a run (default: 4)")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds of idling (default: 5)")
    parser.add_argument("--no-relay", dest="relay", action="store_false", help="no real relay")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples here")
    return parser.parse_args()


def main() -> NoReturn:
    """Measure and print."""
    arguments = parse_arguments()
    raise_file_limit(max(arguments.nodes))
    results = Results(arguments.json)
    asyncio.run(measure_all(arguments, results))
    print(render_results(results))
    # Skip the end of the interpreter: closing thousands of channels takes grpc.aio minutes.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
