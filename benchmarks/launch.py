"""Measure launch, memory and recovery beside torchrun, in one run on one machine.

The same code measures both launchers in turn (A B A B), so other load on the machine hits both. The
workers do not import torch: the launcher is measured. A worker's first statement reads
CLOCK_MONOTONIC, which all processes of a machine share. Then the worker reports over a datagram
socket and waits. Nothing polls, and the time of the report itself does not count.

    python benchmarks/launch.py --wheel --json launch.json

With --wheel it measures an installed wheel of this checkout, as a user has it; a claim needs that.
Without, it measures what is installed beside this interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from harness.installed import describe_installation, run_installed
from harness.trial import MeasurementFailed, Process, Trial, measure_memory

# Memory is read this long after the last worker's start, when the launcher is idle.
SETTLE_S = 0.5
# Fewest runs for a claim about median and spread.
RUNS_MIN = 9


class Launcher(StrEnum):
    RALLYPOINT = "rallypoint"
    TORCHRUN = "torchrun"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    ratio_max: greatest allowed ratio of the medians, ours to torchrun's; or None.
    value_max: greatest allowed median of ours, in `unit`; or None.
    """

    title: str
    unit: str
    ratio_max: float | None = None
    value_max: float | None = None


LAUNCH = Metric("command to the last worker's first line, 1 node x 2", "s", ratio_max=0.15)
MEMORY_STANDALONE = Metric("memory, standalone agent, 2 workers", "MB", value_max=60)
MEMORY_NODE = Metric("memory, agent of a 2-node job, 1 worker", "MB", value_max=60)
RECOVERY = Metric("worker SIGKILL to both back, 2 nodes x 1", "s", ratio_max=0.15)

Samples = dict[Metric, dict[Launcher, list[float]]]


def measure_standalone(launcher: Launcher, _: argparse.Namespace) -> dict[Metric, float]:
    binary = "node-agent" if launcher is Launcher.RALLYPOINT else "torchrun"
    with Trial() as trial:
        began_ns = time.monotonic_ns()
        agent = trial.start([binary, "--standalone", "--nproc-per-node", "2", *trial.script])
        stamps = trial.collect(2)
        time.sleep(SETTLE_S)
        memory = measure_memory(agent.popen.pid, [stamp.pid for stamp in stamps])
        trial.release(stamps, [agent])
    last_ns = max(stamp.clock_ns for stamp in stamps)
    return {LAUNCH: (last_ns - began_ns) / 1e9, MEMORY_STANDALONE: memory}


def start_agents(trial: Trial, launcher: Launcher, arguments: argparse.Namespace) -> list[Process]:
    """Start a job of two nodes with one worker each."""
    common = ["--nproc-per-node", "1", "--max-restarts", "3"]
    if launcher is Launcher.RALLYPOINT:
        coordinator = trial.start(
            ["coordinator", "--host", "127.0.0.1", "--port", "0"], stdout=subprocess.PIPE
        )
        address = trial.read_address(coordinator)
        command = ["node-agent", "--coordinator", address, "--nnodes", "2", "--job-id", "launch"]
    else:
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            address = f"127.0.0.1:{reserved.getsockname()[1]}"
        command = ["torchrun", "--nnodes", arguments.torchrun_nnodes, "--rdzv-id", "launch"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", address]
        command += ["--rdzv-conf", "last_call_timeout=1"]
    return [trial.start([*command, *common, *trial.script]) for _ in range(2)]


def measure_recovery(launcher: Launcher, arguments: argparse.Namespace) -> dict[Metric, float]:
    with Trial() as trial:
        agents = start_agents(trial, launcher, arguments)
        before = trial.collect(2)
        time.sleep(SETTLE_S)
        pids = [stamp.pid for stamp in before]
        memory = max(measure_memory(agent.popen.pid, pids) for agent in agents)
        killed_ns = time.monotonic_ns()
        os.kill(before[1].pid, signal.SIGKILL)
        after = trial.collect(2, old=pids)
        trial.release(after, agents)
    last_ns = max(stamp.clock_ns for stamp in after)
    return {RECOVERY: (last_ns - killed_ns) / 1e9, MEMORY_NODE: memory}


def collect_samples(arguments: argparse.Namespace) -> Samples:
    """Take every measurement `runs` times, after one uncounted run to warm the page cache."""
    samples: Samples = {}
    measures: tuple[Callable[..., dict[Metric, float]], ...] = measure_standalone, measure_recovery
    for measure in measures:
        for run in range(arguments.runs + 1):
            for launcher in arguments.only:
                for metric, value in measure(launcher, arguments).items():
                    print(f"run {run} {launcher} {metric.title}: {value:.3f}", file=sys.stderr)
                    if run > 0:
                        samples.setdefault(metric, {}).setdefault(launcher, []).append(value)
    return samples


def describe_machine() -> dict[str, str | int]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": models[0] if models else platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "rallypoint": describe_installation(),
    }


def summarize(metric: Metric, samples: dict[Launcher, list[float]]) -> dict[str, object]:
    """Return a row: median and spread per launcher; ratio and `met` are None if one is missing."""
    row: dict[str, object] = {
        "title": metric.title,
        "unit": metric.unit,
        "target": "-",
        "met": None,
    }
    medians = {launcher: statistics.median(values) for launcher, values in samples.items()}
    for launcher, values in samples.items():
        spread = {"median": medians[launcher], "min": min(values), "max": max(values)}
        row[launcher.value] = {**spread, "samples": values}
    ours, theirs = medians.get(Launcher.RALLYPOINT), medians.get(Launcher.TORCHRUN)
    ratio = ours / theirs if ours is not None and theirs is not None else None
    row["ratio"] = ratio
    if metric.value_max is not None:
        row["target"] = f"<= {metric.value_max} {metric.unit}"
        row["met"] = None if ours is None else ours <= metric.value_max
    elif metric.ratio_max is not None:
        row["target"] = f"ratio <= {metric.ratio_max}"
        row["met"] = None if ratio is None else ratio <= metric.ratio_max
    return row


def render_cell(row: dict[str, object], launcher: Launcher) -> str:
    figures = row.get(launcher.value)
    if not isinstance(figures, dict):
        return "-"
    unit = row["unit"]
    digits = 3 if unit == "s" else 1
    low, middle, high = (f"{figures[name]:.{digits}f}" for name in ("min", "median", "max"))
    return f"{middle} {unit} ({low}-{high})"


def render_table(report: dict[str, object], rows: list[dict[str, object]]) -> str:
    lines = [f"- {name}: {value}" for name, value in report.items()]
    lines += ["", "| median (min-max) | Rallypoint | torchrun | ratio | target | met |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in rows:
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
        met = "-" if row["met"] is None else ("yes" if row["met"] else "no")
        cells = [str(row["title"]), *(render_cell(row, launcher) for launcher in Launcher)]
        lines.append(f"| {' | '.join([*cells, ratio, str(row['target']), met])} |")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the launchers, side by side.")
    parser.add_argument(
        "--runs", type=int, default=RUNS_MIN, help=f"at least {RUNS_MIN} for a claim"
    )
    parser.add_argument("--only", type=Launcher, choices=list(Launcher), help="leave the other out")
    parser.add_argument(
        "--torchrun-nnodes", default="1:2", metavar="MIN:MAX", help="torchrun's two-node job"
    )
    parser.add_argument(
        "--wheel", action="store_true", help="install a wheel of this checkout, measure that"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples here")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    arguments.only = [arguments.only] if arguments.only else list(Launcher)
    return arguments


def main() -> int:
    arguments = parse_arguments()
    # A plain SIGTERM would end this process and leave the launchers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.wheel:
        rest = [word for word in sys.argv[1:] if word != "--wheel"]
        return run_installed(Path(__file__).resolve(), rest)
    began = datetime.now(UTC)
    load = os.getloadavg()[0]
    try:
        samples = collect_samples(arguments)
    except MeasurementFailed as error:
        print(
            f"measurement failed: {error}",
            *getattr(error, "__notes__", []),
            sep="\n",
            file=sys.stderr,
        )
        return 1
    report: dict[str, object] = {
        **describe_machine(),
        "load before": round(load, 2),
        "date": began.isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "runs": arguments.runs,
        "torchrun nnodes": arguments.torchrun_nnodes,
    }
    rows = [summarize(metric, values) for metric, values in samples.items()]
    print(render_table(report, rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({**report, "measurements": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
