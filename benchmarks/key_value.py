"""What calls of KeyValueService cost, beside etcd and torch's TCPStore.

Every store is a process of this machine, and all run all the time. They take turns, so that other
load on the machine hits all of them. Clients call again as soon as they are answered.

    python benchmarks/key_value.py --json key_value.json
"""

from __future__ import annotations

import argparse
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
from stores.clients import Op, quiet_grpc
from stores.load import Crew, Load
from stores.systems import STARTERS, Server

RUNS = 5
SECONDS = 2.0
CLIENTS = [1, 64]
PROCESSES = 4


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


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare key-value stores, side by side.")
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
    parser.add_argument(
        "--quick", action="store_true", help="one short run: shows that it works, and no more"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all values here")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.runs, arguments.seconds, arguments.clients = 1, 0.2, [1, 8]
    return arguments


def main() -> int:
    arguments = parse_arguments()
    quiet_grpc()
    # A plain SIGTERM would end this process and leave the stores behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = datetime.now(UTC)
    load = os.getloadavg()[0]
    try:
        found = compare(arguments)
    except MeasurementFailed as error:
        notes = getattr(error, "__notes__", [])
        print(f"measurement failed: {error}", *notes, sep="\n", file=sys.stderr)
        return 1
    report = {
        **describe_machine(),
        "load before": round(load, 2),
        "date": began.isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "fdatasync of 4 KiB": f"{measure_fsync_ms():.2f} ms",
        "runs": f"{arguments.runs} of {arguments.seconds:g} s each",
    }
    print("\n".join(f"- {name}: {value}" for name, value in report.items()))
    print(render(found))
    if arguments.json:
        rows = [asdict(series) for series in found]
        arguments.json.write_text(json.dumps({**report, "series": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
