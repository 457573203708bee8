"""Measure the start and the end of a two-node job: hosted coordinator, separate one, torchrun.

The three take turns (A B C A B C), so other load on the machine hits all. Both nodes are on this
machine, and their commands start at the same moment. The workers do not import torch. Each job has
another port, and nothing of it may be left when both commands have returned.

    python benchmarks/command/hosting.py --wheel --json hosting.json

With --wheel it measures an installed wheel of this checkout, as a user has it; a claim needs that.

A start is the time from both commands to the last worker's first line. With a separate coordinator
it is measured twice: with the start of the coordinator, and with one that already listens.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from harness.installed import run_installed
from harness.trial import MeasurementFailed, Process, Trial
from launch import describe_machine

HOSTED = "hosted coordinator"
SEPARATE = "separate coordinator, and its start"
RUNNING = "coordinator that already listens"
TORCHRUN = "torchrun, c10d"
RUNS = 9
LEFT_S_MAX = 10.0
"""How long a hosted coordinator may outlive both commands."""

Figures = dict[str, float]
"""Seconds by what was measured."""


def free_port() -> int:
    """Return a port that no other process has now."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port: int = reserved.getsockname()[1]
        return port


def run(trial: Trial, command: list[str], began_ns: int) -> Figures:
    """Run both nodes of a job; return how long start and end take."""
    job = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "bench", *trial.script]
    nodes: list[Process] = [trial.start([*command, *job]) for _ in range(2)]
    stamps = trial.collect(2)
    released_ns = time.monotonic_ns()
    trial.release(stamps, nodes)
    ended_ns = time.monotonic_ns()
    last_ns = max(stamp.clock_ns for stamp in stamps)
    return {"start": (last_ns - began_ns) / 1e9, "end": (ended_ns - released_ns) / 1e9}


@contextmanager
def state_in(folder: Path) -> Iterator[None]:
    """Let hosted coordinators keep their journals in a folder."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(folder)
    try:
        yield
    finally:
        del os.environ["XDG_STATE_HOME"]
        if before is not None:
            os.environ["XDG_STATE_HOME"] = before


def hosted() -> dict[str, Figures]:
    with Trial() as trial, state_in(trial.folder):
        endpoint = f"127.0.0.1:{free_port()}"
        began_ns = time.monotonic_ns()
        figures = run(trial, ["node-agent", "--rdzv-endpoint", endpoint], began_ns)
        end_s = time.monotonic() + LEFT_S_MAX
        while left := list((trial.folder / "rallypoint").iterdir()):
            if time.monotonic() > end_s:
                raise MeasurementFailed(f"left behind: {left}")
            time.sleep(0.01)
    return {HOSTED: figures}


def separate(*, counts_start: bool) -> Figures:
    with Trial() as trial:
        began_ns = time.monotonic_ns()
        flags = ["--host", "127.0.0.1", "--port", "0", "--startup-window", "0"]
        coordinator = trial.start(["coordinator", *flags], stdout=subprocess.PIPE)
        command = ["node-agent", "--coordinator", trial.read_address(coordinator)]
        return run(trial, command, began_ns if counts_start else time.monotonic_ns())


def both_separate() -> dict[str, Figures]:
    return {SEPARATE: separate(counts_start=True), RUNNING: separate(counts_start=False)}


def torchrun() -> dict[str, Figures]:
    with Trial() as trial:
        endpoint = f"127.0.0.1:{free_port()}"
        command = ["torchrun", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
        return {TORCHRUN: run(trial, command, time.monotonic_ns())}


def collect(runs: int) -> dict[str, dict[str, list[float]]]:
    """Measure everything so many times, after one run that does not count."""
    samples: dict[str, dict[str, list[float]]] = {}
    measures: tuple[Callable[[], dict[str, Figures]], ...] = (hosted, both_separate, torchrun)
    for number in range(runs + 1):
        for measure in measures:
            for how, figures in measure().items():
                print(f"run {number} {how}: {figures}", file=sys.stderr)
                for what, value_s in figures.items() if number else ():
                    samples.setdefault(how, {}).setdefault(what, []).append(value_s)
    return samples


def render(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s ({min(values):.2f}-{max(values):.2f})"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Start and end of a job of two nodes.")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"at least {RUNS} for a claim")
    parser.add_argument(
        "--wheel", action="store_true", help="install a wheel of this checkout, measure that"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples here")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.wheel:
        rest = [word for word in sys.argv[1:] if word != "--wheel"]
        return run_installed(Path(__file__).resolve(), rest)
    report = {**describe_machine(), "load before": f"{os.getloadavg()[0]:.1f}"}
    report |= {"runs": str(arguments.runs), "command": f"python {' '.join(sys.argv)}"}
    try:
        samples = collect(arguments.runs)
    except MeasurementFailed as error:
        notes = getattr(error, "__notes__", [])
        print(f"measurement failed: {error}", *notes, sep="\n", file=sys.stderr)
        return 1
    for key, value in report.items():
        print(f"- {key}: {value}")
    print("\n| median (min-max) | start | end |")
    print("|---|---|---|")
    for how, figures in samples.items():
        print(f"| {how} | {render(figures['start'])} | {render(figures['end'])} |")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({**report, "samples_s": samples}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
