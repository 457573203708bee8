"""How long an operator waits for `rallypoint status` and its sisters: jobs of 1 to 4,096 nodes.

Simulated nodes (real gRPC streams, in this process) with eight workers each, and a real coordinator
process. Each command is a process, timed from its start to its end, with its output in a pipe. They
take turns. `python -c pass` shows what Python alone takes,
and `rallypoint --version` what our commands take without a coordinator.

    python benchmarks/command/status.py --json benchmarks/results/commands.json
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from harness.installed import clean_environment
from harness.program import Wrong, make_parser, run
from harness.results import Results
from harness.swarm import running_job
from nodes.forming import BIN, coordinator, server

TABLE, STATUS = "commands", "`rallypoint status`"
JOB = "rounds"
WORKERS = 8
REPEATS_MIN = 15
"""Fewest repeats for a claim."""
TARGET_MS = 400
"""For `rallypoint status`, with any number of nodes up to the largest here."""

COMMANDS = {
    "rallypoint status": ("status", JOB),
    "rallypoint status --all": ("status", JOB, "--all"),
    "rallypoint status -o json": ("status", JOB, "-o", "json"),
    "rallypoint explain": ("explain", JOB),
    "rallypoint jobs": ("jobs",),
}


def run_command(argv: list[str]) -> tuple[float, int]:
    """Run a command; return for how many ms, and how many bytes it printed.

    Raises:
        CalledProcessError: it has failed.
    """
    environment = clean_environment()
    began = time.perf_counter()
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, check=True)
    return (time.perf_counter() - began) * 1000, len(done.stdout)


async def measure_size(nodes: int, repeats: int, results: Results, *, shows_size: bool) -> None:
    """Run every command about a job of so many nodes.

    Args:
        nodes: how many.
        repeats: how often.
        results: get a column.
        shows_size: whether what is printed gets a column, too.
    """
    column = f"{nodes:,} node{'s' if nodes > 1 else ''}"
    async with (
        server(*coordinator(kind="lifted")) as one,
        running_job(one.target, nodes, workers=WORKERS, job_id=JOB),
    ):
        lines = {
            "`python -c pass`": [str(BIN / "python"), "-c", "pass"],
            "`rallypoint --version`": [str(BIN / "rallypoint"), "--version"],
        }
        for name, words in COMMANDS.items():
            lines[f"`{name}`"] = [str(BIN / "rallypoint"), *words, "-c", one.target]
        for number in range(repeats + 1):
            for name, argv in lines.items():
                took_ms, printed = await asyncio.to_thread(run_command, argv)
                if number:  # the first one does not count
                    results.add(TABLE, name, column, "ms", took_ms)
                elif shows_size:
                    results.add(TABLE, name, f"printed with {nodes:,}", "KB", printed / 1000)


async def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Run every command with a job of each size; return the sizes with which `status` is late."""
    sizes = arguments.sizes
    for nodes in sizes:
        is_last = nodes == sizes[-1]
        await measure_size(nodes, arguments.repeats, results, shows_size=is_last)
        results.write()
    wanted = [one for one in results.cells if one.row == STATUS and one.unit == "ms"]
    medians = ((one.column, statistics.median(one.samples)) for one in wanted)
    return [
        f"target of {TARGET_MS} ms missed: {column}: {took:.0f} ms"
        for column, took in medians
        if took >= TARGET_MS
    ]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("Measure how long the operator's commands take.")
    parser.add_argument(
        *("--sizes", "-s"), type=int, nargs="+", default=[1, 256, 4_096], help="nodes of the job"
    )
    parser.add_argument("--repeats", type=int, default=REPEATS_MIN, help="of each command")
    return parser.parse_args()


if __name__ == "__main__":
    run(measure, parse_arguments())
