"""How long thousands of nodes take to meet: Rallypoint beside torchft's lighthouse, in turn.

    python -m venv torchft && torchft/bin/pip install --no-deps torchft-nightly
    python benchmarks/meeting/lighthouse.py --torchft torchft/bin/python

The lighthouse is the Rust server with which torchft's replica groups agree on a quorum. Its clients
are torchft's own, a thread each (`quorums.py`). Rallypoint's are simulated agents, as in
`rounds.py`. Both form a first round, with the connections, and form it again: Rallypoint after a
failure, which stops the workers of all nodes first, and the lighthouse when all ask for their next
quorum, as torchft does before each step.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from launch import describe_machine
from nodes.processes import crowd_of, raise_file_limit
from rounds import (
    PAUSE_S,
    STEP_S_MAX,
    WINDOW_S,
    Times,
    compare,
    coordinator_command,
    form_rounds,
    read_cpu_s,
    server,
    spread,
)

QUORUMS = Path(__file__).with_name("quorums.py")


@dataclass(slots=True)
class Row:
    """What was measured for one number of nodes."""

    nodes: int
    ours: Times
    theirs: Times


@asynccontextmanager
async def lighthouse(python: str, nodes: int) -> AsyncIterator[tuple[int, int]]:
    """Run a lighthouse for so many replicas; yield its port and its pid."""
    process = await asyncio.create_subprocess_exec(
        *(python, str(QUORUMS), "serve", str(nodes)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(STEP_S_MAX):
            line = await process.stdout.readline()
        yield int(line.decode().rpartition(":")[2]), process.pid
    finally:
        process.kill()
        async with asyncio.timeout(STEP_S_MAX):
            await process.wait()


async def measure_theirs(python: str, nodes: int, rounds: int, times: Times) -> None:
    """Let the lighthouse form a quorum, and again."""
    async with lighthouse(python, nodes) as (port, pid):

        def command(first: int, count: int) -> tuple[str, ...]:
            return python, str(QUORUMS), "join", str(port), str(first), str(count)

        async with crowd_of(nodes, command) as crowd:
            for number in range(rounds + 1):
                await asyncio.sleep(PAUSE_S)
                spent_s, begun = read_cpu_s(pid), time.perf_counter()
                crowd.begin()
                await crowd.gather()
                took_ms = (time.perf_counter() - begun) * 1000
                cpu_ms = (read_cpu_s(pid) - spent_s) * 1000
                (times.again_ms if number else times.first_ms).append(took_ms)
                (times.again_cpu_ms if number else times.first_cpu_ms).append(cpu_ms)


async def measure_ours(nodes: int, rounds: int, times: Times) -> None:
    """Let the coordinator form a round, and again."""
    async with server(*coordinator_command()) as (port, pid):
        await asyncio.sleep(WINDOW_S)
        await form_rounds(port, pid, nodes, rounds, times, marked=False)


def render(rows: list[Row]) -> str:
    """Return the table."""
    lines = [
        "| nodes | first round, ms | lighthouse | ratio | CPU, ms | lighthouse "
        "| round again, ms | lighthouse | ratio | CPU, ms | lighthouse |",
        "|---" * 11 + "|",
    ]
    for row in rows:
        cells = [
            str(row.nodes),
            *compare(row.ours.first_ms, row.theirs.first_ms),
            *(spread(row.ours.first_cpu_ms), spread(row.theirs.first_cpu_ms)),
            *compare(row.ours.again_ms, row.theirs.again_ms),
            *(spread(row.ours.again_cpu_ms), spread(row.theirs.again_cpu_ms)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


async def measure(arguments: argparse.Namespace) -> None:
    """Measure every size, in turn, and print."""
    raise_file_limit(max(arguments.nodes))
    rows: list[Row] = []
    for nodes in arguments.nodes:
        row = Row(nodes, Times(), Times())
        for _ in range(arguments.runs):
            await measure_ours(nodes, arguments.rounds, row.ours)
            await measure_theirs(arguments.torchft, nodes, arguments.rounds, row.theirs)
        rows.append(row)
        print(f"measured {nodes} nodes", file=sys.stderr, flush=True)
    for name, value in describe_machine().items():
        print(f"- {name}: {value}")
    print(f"- command: python {' '.join(sys.argv)}\n")
    print(render(rows), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure how long nodes take to meet.")
    sizes = [64, 256, 1024]
    parser.add_argument("--torchft", required=True, help="Python of an environment with torchft")
    parser.add_argument("--nodes", type=int, nargs="+", default=sizes, help=f"default: {sizes}")
    parser.add_argument("--runs", type=int, default=3, help="pairs of both (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="re-formings a run (default: 5)")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
