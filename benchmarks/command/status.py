"""How long an operator waits for `rallypoint status` and its sisters: jobs of 1 to 4,096 nodes.

Simulated nodes (real gRPC streams, in this process) with eight workers each, and a real coordinator
process. The commands are those of an installed wheel; each is a process, timed from its start to
its end, with its output in a pipe. They take turns. `python -c pass` shows what Python alone takes,
and `rallypoint --version` what our commands take without a coordinator.

    python benchmarks/command/status.py --json status.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from command.readers import coordinator, running_job
from harness.installed import clean_environment, install
from launch import describe_machine

JOB = "rounds"
"""What the simulated agents call their job."""
WORKERS = 8
REPEATS_MIN = 15
"""Fewest repeats for a claim."""
TARGET_S = 0.4
"""For `rallypoint status`, with any number of nodes up to the largest here."""

COMMANDS = {
    "rallypoint status": ("status", JOB),
    "rallypoint status --all": ("status", JOB, "--all"),
    "rallypoint status -o json": ("status", JOB, "-o", "json"),
    "rallypoint explain": ("explain", JOB),
    "rallypoint jobs": ("jobs",),
}


@dataclass(slots=True)
class Row:
    """One command with a job of one size."""

    command: str
    nodes: int
    took_s: list[float] = field(default_factory=list)
    printed_bytes: int = 0


def run(argv: list[str], row: Row) -> None:
    """Run a command, and note how long it took.

    Raises:
        CalledProcessError: it has failed.
    """
    environment = clean_environment()
    began = time.perf_counter()
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, check=True)
    row.took_s.append(time.perf_counter() - began)
    row.printed_bytes = len(done.stdout)


async def measure(scripts: Path, sizes: list[int], repeats: int) -> list[Row]:
    """Run every command with a job of each size."""
    found = list[Row]()
    for nodes in sizes:
        async with coordinator() as (port, _, _witness), running_job(port, nodes, WORKERS):
            lines = {
                "python -c pass": [str(scripts / "python"), "-c", "pass"],
                "rallypoint --version": [str(scripts / "rallypoint"), "--version"],
            }
            target = ["-c", f"127.0.0.1:{port}"]
            for name, words in COMMANDS.items():
                lines[name] = [str(scripts / "rallypoint"), *words, *target]
            rows = {name: Row(name, nodes) for name in lines}
            for argv in lines.values():
                await asyncio.to_thread(run, argv, Row("not counted", nodes))
            for _ in range(repeats):
                for name, argv in lines.items():
                    await asyncio.to_thread(run, argv, rows[name])
            found += rows.values()
    return found


def render(rows: list[Row]) -> str:
    """Return the table."""
    sizes = sorted({row.nodes for row in rows})
    names = list(dict.fromkeys(row.command for row in rows))
    by_place = {(row.command, row.nodes): row for row in rows}
    heads = [f"{nodes:,} node{'s' if nodes > 1 else ''}, ms" for nodes in sizes]
    most = sizes[-1]
    lines = [
        f"| median (min-max) | {' | '.join(heads)} | printed with {most:,}, KB |",
        "|---" * (len(sizes) + 2) + "|",
    ]
    for name in names:
        cells = [_spread(by_place[name, nodes].took_s) for nodes in sizes]
        cells.append(f"{by_place[name, most].printed_bytes / 1000:,.1f}")
        lines.append(f"| {' | '.join([f'`{name}`', *cells])} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    low, high = min(values) * 1000, max(values) * 1000
    return f"{statistics.median(values) * 1000:.0f} ({low:.0f}-{high:.0f})"


def find_missed(rows: list[Row]) -> list[str]:
    """Return the sizes with which `rallypoint status` misses its target."""
    wanted = (row for row in rows if row.command == "rallypoint status")
    medians = ((row.nodes, statistics.median(row.took_s)) for row in wanted)
    return [f"{nodes:,} nodes: {took:.2f} s" for nodes, took in medians if took >= TARGET_S]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure how long the operator's commands take.")
    parser.add_argument(
        *("--sizes", "-s"), type=int, nargs="+", default=[1, 256, 4_096], help="nodes of the job"
    )
    parser.add_argument("--repeats", type=int, default=REPEATS_MIN, help="of each command")
    parser.add_argument("--scripts", type=Path, help="folder of the commands (default: a wheel)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser.parse_args()


def main() -> NoReturn:
    """Measure, and print a table; a missed target ends with 1."""
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="installed-") as name:
        scripts = arguments.scripts or install(Path(name))
        rows = asyncio.run(measure(scripts, arguments.sizes, arguments.repeats))
    report = {**describe_machine(), "rallypoint": "wheel" if not arguments.scripts else "given"}
    for key, value in report.items():
        print(f"- {key}: {value}")
    print(f"- load: {', '.join(f'{one:.1f}' for one in os.getloadavg())}")
    print(f"- command: python {' '.join(sys.argv)}\n\n{render(rows)}", flush=True)
    missed = find_missed(rows)
    print(
        f"\ntarget of {TARGET_S} s missed: {'; '.join(missed)}" if missed else "\nno target missed"
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))
    # Skip the end of the interpreter: grpc.aio has been seen to hang there after a thousand
    # channels, with all of them closed.
    sys.stdout.flush()
    os._exit(bool(missed))


if __name__ == "__main__":
    main()
