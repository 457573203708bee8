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
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from command.readers import coordinator, running_job
from harness.installed import clean_environment
from harness.results import Results
from harness.tables import render_results

TABLE, STATUS = "commands", "`rallypoint status`"
BIN = Path(sys.executable).parent
JOB = "rounds"
"""What the simulated agents call their job."""
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


def run(argv: list[str]) -> tuple[float, int]:
    """Run a command; return for how many ms, and how many bytes it printed.

    Raises:
        CalledProcessError: it has failed.
    """
    environment = clean_environment()
    began = time.perf_counter()
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, check=True)
    return (time.perf_counter() - began) * 1000, len(done.stdout)


async def measure(sizes: list[int], repeats: int, results: Results) -> None:
    """Run every command with a job of each size."""
    for nodes in sizes:
        column = f"{nodes:,} node{'s' if nodes > 1 else ''}"
        async with coordinator() as (port, _, _witness), running_job(port, nodes, WORKERS):
            lines = {
                "`python -c pass`": [str(BIN / "python"), "-c", "pass"],
                "`rallypoint --version`": [str(BIN / "rallypoint"), "--version"],
            }
            target = ["-c", f"127.0.0.1:{port}"]
            for name, words in COMMANDS.items():
                lines[f"`{name}`"] = [str(BIN / "rallypoint"), *words, *target]
            for number in range(repeats + 1):
                for name, argv in lines.items():
                    took_ms, printed = await asyncio.to_thread(run, argv)
                    if number:  # the first one does not count
                        results.add(TABLE, name, column, "ms", took_ms)
                    elif nodes == sizes[-1]:
                        results.add(TABLE, name, f"printed with {nodes:,}", "KB", printed / 1000)
        results.write()


def find_missed(results: Results) -> list[str]:
    """Return the sizes with which `rallypoint status` misses its target."""
    wanted = [one for one in results.cells if one.row == STATUS and one.unit == "ms"]
    medians = ((one.column, statistics.median(one.samples)) for one in wanted)
    return [f"{column}: {took:.0f} ms" for column, took in medians if took >= TARGET_MS]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure how long the operator's commands take.")
    parser.add_argument(
        *("--sizes", "-s"), type=int, nargs="+", default=[1, 256, 4_096], help="nodes of the job"
    )
    parser.add_argument("--repeats", type=int, default=REPEATS_MIN, help="of each command")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples here")
    return parser.parse_args()


def main() -> NoReturn:
    """Measure, and print a table; a missed target ends with 1."""
    arguments = parse_arguments()
    results = Results(arguments.json)
    asyncio.run(measure(arguments.sizes, arguments.repeats, results))
    print(render_results(results), flush=True)
    missed = find_missed(results)
    print(f"\ntarget of {TARGET_MS} ms missed: {'; '.join(missed)}" if missed else "", flush=True)
    # Skip the end of the interpreter: grpc.aio has been seen to hang there after a thousand
    # channels, with all of them closed.
    sys.stdout.flush()
    os._exit(bool(missed))


if __name__ == "__main__":
    main()
