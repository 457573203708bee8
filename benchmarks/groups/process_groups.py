"""How long `init_process_group` with gloo takes over our Store, and over a TCPStore.

A real coordinator process; the node is in this process, and the ranks are processes (see
ranks.py). All stores take turns.

    python benchmarks/groups/process_groups.py
    python benchmarks/groups/process_groups.py --sizes 2 8 --runs 20
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from barriers import node
from launch import describe_machine

RANKS = Path(__file__).with_name("ranks.py")
STORES = {
    "tcp": "TCPStore in rank 0",
    "agent": "TCPStore of the agent",
    "rallypoint": "Rallypoint",
}
LIMIT_S = 180.0


async def measure(size: int, runs: int) -> dict[str, list[float]]:
    """Return the times of each store, in ms, in the order of the runs."""
    times_ms: dict[str, list[float]] = {store: [] for store in STORES}
    async with node(size) as (one, _):
        environ = os.environ | {
            "RALLYPOINT_COORDINATOR": f"127.0.0.1:{one.port}",
            "RALLYPOINT_JOB_ID": one.job_id,
            "RALLYPOINT_WORKER_TOKEN": one.token,
            "RALLYPOINT_EPOCH": str(one.epoch),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        ranks = await asyncio.create_subprocess_exec(
            *(sys.executable, str(RANKS), str(size)),
            env=environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert ranks.stdin is not None and ranks.stdout is not None
        for number in range(runs + 1):
            for store in STORES:
                command = {"store": store, "name": f"{store}-{number}"}
                ranks.stdin.write(json.dumps(command).encode() + b"\n")
                async with asyncio.timeout(LIMIT_S):
                    line = await ranks.stdout.readline()
                if not line:
                    raise SystemExit(f"the ranks have ended, see above: {store}, {size} ranks")
                if number > 0:  # the first run loads what the others have
                    times_ms[store].append(json.loads(line) * 1000)
        ranks.stdin.close()
        async with asyncio.timeout(LIMIT_S):
            await ranks.wait()
    return times_ms


def show(size: int, times_ms: dict[str, list[float]]) -> None:
    cells = [
        f"{statistics.median(times):.0f} ({min(times):.0f}-{max(times):.0f})"
        for times in times_ms.values()
    ]
    ratios = []
    for other in ("tcp", "agent"):
        pairs = zip(times_ms["rallypoint"], times_ms[other], strict=True)
        ratios.append(f"{statistics.median(ours / theirs for ours, theirs in pairs):.1f}")
    print(f"| {size} | {' | '.join(cells)} | {' | '.join(ratios)} |", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure init_process_group with gloo.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 8, 32], help="ranks")
    parser.add_argument("--runs", type=int, default=15, help="of each store (default: 15)")
    parser.add_argument("--json", type=Path, help="keep all times here")
    parser.add_argument("--quick", action="store_true", help="once, and small: shows that it works")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.sizes, chosen.runs = [2], 1
    return chosen


def main() -> None:
    chosen = parse_arguments()
    for fact, value in describe_machine().items():
        print(f"- {fact}: {value}")
    print(f"- load before: {os.getloadavg()[0]:.2f}")
    print(f"- command: {shlex.join(['python', *sys.argv])}\n")
    print(f"| ranks | {', ms | '.join(STORES.values())}, ms | to rank 0's | to the agent's |")
    print("|---|---|---|---|---|---|", flush=True)
    kept = {}
    for size in chosen.sizes:
        kept[size] = asyncio.run(measure(size, chosen.runs))
        show(size, kept[size])
    if chosen.json:
        chosen.json.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
