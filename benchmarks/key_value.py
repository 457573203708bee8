"""What calls of KeyValueService cost: beside etcd and torch's TCPStore, and for other jobs.

Every store is a process of this machine, and all run all the time. They take turns, so that other
load on the machine hits all of them. Clients call again as soon as they are answered. What calls
cost other jobs: see `stores/isolation.py`.

    python benchmarks/key_value.py --json key_value.json
    python benchmarks/key_value.py --only isolation
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import statistics
import sys
import tempfile
import time
from array import array
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.trial import MeasurementFailed, Trial
from launch import describe_machine
from rounds import read_cpu_s
from stores.clients import BATCH, Op, quiet_grpc
from stores.isolation import Figures, Pressure, measure_isolation
from stores.load import Crew, Load
from stores.systems import STARTERS, Server

RUNS = 5
SECONDS = 2.0
CLIENTS = [1, 64]
PROCESSES = 4
NODES = 64
PAIRS = 25
PUTS = 200
BATCHES = 300
LATE_MS = 1_000
"""A heartbeat whose answer takes longer is late: the next one is due."""


@dataclass(slots=True)
class Series:
    """What one store did with one kind of call, of so many clients: one value for each run."""

    store: str
    op: Op
    clients: int
    rates: list[float] = field(default_factory=list)
    """Calls a second."""
    p50_ms: list[float] = field(default_factory=list)
    """Empty when calls are not answered."""
    p99_ms: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    """Processor time of the store's process for each call."""


def measure(crew: Crew, server: Server, series: Series, seconds: float) -> None:
    """Let the clients call for a while."""
    before_s: list[float] = []
    load = Load(server.target, series.op, series.clients, seconds)
    (outcome,) = crew.run(load, at_begin=lambda: before_s.append(read_cpu_s(server.pid)))
    spent_s = read_cpu_s(server.pid) - before_s[0]
    series.rates.append(outcome.rate)
    series.server_us.append(spent_s / outcome.calls * 1e6)
    if outcome.times_ms:
        series.p50_ms.append(percentile(outcome.times_ms, 0.5))
        series.p99_ms.append(percentile(outcome.times_ms, 0.99))


def percentile(values: array[float], part: float) -> float:
    """Return the value that is not less than this part of all."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def compare(arguments: argparse.Namespace) -> list[Series]:
    """Measure all stores in turn, each time in another order."""
    with Trial() as trial, Crew(arguments.processes) as crew:
        servers = [STARTERS[name](trial) for name in arguments.stores]
        table = {
            (clients, op, server.name): Series(server.name, op, clients)
            for clients in arguments.clients
            for op in Op
            for server in servers
        }
        for run in range(arguments.runs):
            print(f"run {run + 1} of {arguments.runs}", file=sys.stderr, flush=True)
            for clients in arguments.clients:
                for op in Op:
                    for place in range(len(servers)):
                        server = servers[(place + run) % len(servers)]
                        series = table[clients, op, server.name]
                        measure(crew, server, series, arguments.seconds)
        return list(table.values())


def measure_fsync_ms() -> float:
    """Return how long the disk of the stores takes to make 4 KiB durable: median of a hundred."""
    took_ms: list[float] = []
    with tempfile.TemporaryFile() as file:
        for _ in range(100):
            file.write(bytes(4096))
            file.flush()
            began_s = time.perf_counter()
            os.fdatasync(file.fileno())
            took_ms.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(took_ms)


def spread(values: list[float], digits: int = 0) -> str:
    """Return median and range."""
    if not values:
        return "-"
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def render(found: list[Series]) -> str:
    """Return a table for each number of clients."""
    lines: list[str] = []
    for clients in sorted({series.clients for series in found}):
        lines += [
            "",
            f"| {clients} client{'s' if clients > 1 else ''}, median (min-max) | calls/s "
            "| p50, ms | p99, ms | processor time of the store, µs a call |",
            "|---" * 5 + "|",
        ]
        for series in found:
            if series.clients == clients:
                cells = [
                    f"{series.op}, {series.store}",
                    spread(series.rates),
                    spread(series.p50_ms, 2),
                    spread(series.p99_ms, 2),
                    spread(series.server_us),
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def isolate(arguments: argparse.Namespace) -> list[Figures]:
    """Measure failures alone and beside the calls of another job; one result for each run."""
    pressure = Pressure(arguments.puts, arguments.batches)
    found: list[Figures] = []
    with Crew(arguments.processes) as crew:
        for _ in range(arguments.runs):
            figures = Figures()
            asyncio.run(
                measure_isolation(crew, arguments.nodes, arguments.pairs, pressure, figures)
            )
            found.append(figures)
    return found


def render_isolation(arguments: argparse.Namespace, found: list[Figures]) -> str:
    """Return a table: one row for each run."""
    pressure = f"{arguments.puts} puts and {arguments.batches} batches of {BATCH} puts a second"
    lines = [
        "",
        f"A job of {arguments.nodes} nodes; {arguments.pairs} failures alone, and as many beside "
        f"{pressure} of another job.",
        "",
        "| failure to the last Run, ms | alone | beside the calls | ratio of the medians "
        "| beside calls to another process | ratio "
        "| heartbeats answered late | longest, ms | changes/s |",
        "|---" * 9 + "|",
    ]
    for number, figures in enumerate(found, 1):
        beats_ms = figures.alone_beats_ms + figures.beside_beats_ms
        late = sum(beat_ms > LATE_MS for beat_ms in beats_ms)
        alone = statistics.median(figures.alone_ms)
        cells = [
            f"run {number}, median (min-max)",
            spread(figures.alone_ms, 1),
            spread(figures.beside_ms, 1),
            f"{statistics.median(figures.beside_ms) / alone:.2f}",
            spread(figures.elsewhere_ms, 1),
            f"{statistics.median(figures.elsewhere_ms) / alone:.2f}",
            f"{late} of {len(beats_ms):,}",
            f"{max(beats_ms):.0f}",
            f"{statistics.median(figures.changes):,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare key-value stores, side by side.")
    parser.add_argument("--only", choices=["calls", "isolation"], help="leave the other out")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"default: {RUNS}")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of each measurement (default: {SECONDS})"
    )
    parser.add_argument(
        "--clients", type=int, nargs="+", default=CLIENTS, help=f"default: {CLIENTS}"
    )
    parser.add_argument(
        "--processes", type=int, default=PROCESSES, help=f"of the clients (default: {PROCESSES})"
    )
    stores = list(STARTERS)
    parser.add_argument(
        "--stores", nargs="+", choices=stores, default=stores, help="leave the others out"
    )
    parser.add_argument("--nodes", type=int, default=NODES, help=f"of a job (default: {NODES})")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"failures (default: {PAIRS})")
    parser.add_argument("--puts", type=int, default=PUTS, help=f"a second (default: {PUTS})")
    batches = f"of {BATCH} puts, a second (default: {BATCHES})"
    parser.add_argument("--batches", type=int, default=BATCHES, help=batches)
    parser.add_argument(
        "--quick", action="store_true", help="one short run: shows that it works, and no more"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all values here")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.runs, arguments.seconds, arguments.clients = 1, 0.2, [1, 8]
        arguments.nodes, arguments.pairs, arguments.batches = 8, 2, 10
    return arguments


def main() -> int:
    arguments = parse_arguments()
    quiet_grpc()
    # A plain SIGTERM would end this process and leave the stores behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report = {
        **describe_machine(),
        "load before": round(os.getloadavg()[0], 2),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "fdatasync of 4 KiB": f"{measure_fsync_ms():.2f} ms",
        "runs": f"{arguments.runs}, each call for {arguments.seconds:g} s",
    }
    print("\n".join(f"- {name}: {value}" for name, value in report.items()), flush=True)
    rows: dict[str, list[dict[str, object]]] = {}
    failures: list[BaseException] = []
    try:
        if arguments.only != "isolation":
            series = compare(arguments)
            print(render(series), flush=True)
            rows["series"] = [asdict(one) for one in series]
        if arguments.only != "calls":
            figures = isolate(arguments)
            print(render_isolation(arguments, figures), flush=True)
            rows["isolation"] = [asdict(one) for one in figures]
    except* MeasurementFailed as group:
        failures += group.exceptions
    for failure in failures:
        notes = getattr(failure, "__notes__", [])
        print(f"measurement failed: {failure}", *notes, sep="\n", file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps({**report, **rows}, indent=2) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
