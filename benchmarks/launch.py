"""Start, end and memory of a job beside torchrun: one node, and two nodes of this machine.

First with workers that do not import torch: the launcher is measured. A worker's first statement
reads CLOCK_MONOTONIC, which all processes of a machine share. Then the worker reports over a
datagram socket and waits. Nothing polls, and the time of the report itself does not count. A start
is the time from just before the first command to the last worker's first line; an end that from the
end of the workers until all commands have returned.

Then with workers of one node that import torch: until the last one is in its main program, and the
memory of all processes, workers included. All kinds take turns.

    python benchmarks/launch.py --json benchmarks/results/launch.json
"""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from harness.quickest import meet_at, torchrun
from harness.results import Results
from harness.tables import render_results
from harness.trial import MeasurementFailed, Process, Trial, measure_memory
from recoveries.jobs import Job, Launcher
from recoveries.marks import Marks

SETTLE_S = 0.5
"""Memory is read this long after the last worker's start, when the launcher is idle."""
RUNS_MIN = 9
"""Fewest runs for a claim about median and spread."""
TABLE, MEMORY = "launch", "memory"
START, END, LAUNCHERS, EACH = "start", "end", "memory of launchers", "memory"
STANDALONE = "1 node, 2 workers: Rallypoint"
STANDALONE_TORCHRUN = "1 node, 2 workers: torchrun"
HOSTED = "2 nodes, 1 worker each: Rallypoint, one node hosts the coordinator"
SEPARATE = "Rallypoint, a coordinator with `--startup-window 0` is started first"
RUNNING = "Rallypoint, a coordinator listens already"
TORCHRUN = "2 nodes, 1 worker each: torchrun, one node hosts the store"
AGENT, COORDINATOR = "agent of a 2-node job, with its helper", "coordinator"
WITH_STORE, WITHOUT_STORE = "torchrun, the node with the store", "torchrun, the other node"

TORCH, IN_MAIN, ALL = "torch", "command to all in main", "memory of all processes"
WORKERS = (1, 2, 8)
"""That import torch."""
IMPORT_LIMIT_S = 300.0
"""For their first all-reduce; 32 workers on two cores take a minute."""

Sizes = dict[str, float]


def free_endpoint() -> str:
    """Return an address of this machine with a port that no other process has now."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        return f"127.0.0.1:{reserved.getsockname()[1]}"


def run(
    results: Results,
    trial: Trial,
    row: str,
    commands: Sequence[list[str]],
    *,
    workers: int,
    beside: Sequence[Process] = (),
    began_ns: int | None = None,
) -> Sizes:
    """Run a job to its end, and add a row; return the memory of each launcher in MB, by name.

    Args:
        results: get the row.
        trial: owns the processes.
        row: names the kind.
        commands: one for each node, without the workers' script.
        workers: of all nodes.
        beside: what else belongs to the launcher.
        began_ns: since when the start counts; by default from just before the first command.
    """
    began_ns = time.monotonic_ns() if began_ns is None else began_ns
    nodes = [trial.start([*command, *trial.script]) for command in commands]
    stamps = trial.collect(workers)
    time.sleep(SETTLE_S)
    pids = [stamp.pid for stamp in stamps]
    sizes = {one.name: measure_memory(one.popen.pid, pids) for one in (*beside, *nodes)}
    released_ns = time.monotonic_ns()
    trial.release(stamps, nodes)
    ended_ns = time.monotonic_ns()
    last_ns = max(stamp.clock_ns for stamp in stamps)
    results.add(TABLE, row, START, "s", (last_ns - began_ns) / 1e9)
    results.add(TABLE, row, END, "s", (ended_ns - released_ns) / 1e9)
    results.add(TABLE, row, LAUNCHERS, "MB", sum(sizes.values()))
    return sizes


def standalone(results: Results) -> None:
    with Trial() as trial:
        command = ["node-agent", "--standalone", "--nproc-per-node", "2"]
        run(results, trial, STANDALONE, [command], workers=2)


def standalone_torchrun(results: Results) -> None:
    with Trial() as trial:
        command = torchrun("--standalone", "--nproc-per-node", "2")
        run(results, trial, STANDALONE_TORCHRUN, [command], workers=2)


def hosted(results: Results) -> None:
    with Trial() as trial:
        command = ["node-agent", "--nnodes", "2", "--rdzv-endpoint", free_endpoint()]
        run(results, trial, HOSTED, [command] * 2, workers=2)


def separate(results: Results) -> None:
    _separate(results, SEPARATE)


def running(results: Results) -> None:
    _separate(results, RUNNING)


def _separate(results: Results, row: str) -> None:
    with Trial() as trial:
        began_ns = time.monotonic_ns()
        flags = ["--host", "127.0.0.1", "--port", "0", "--startup-window", "0"]
        coordinator = trial.start(["coordinator", *flags], stdout=subprocess.PIPE)
        address = trial.read_address(coordinator)
        command = ["node-agent", "--coordinator", address, "--nnodes", "2", "--job-id", "launch"]
        sizes = run(
            *(results, trial, row, [command] * 2),
            workers=2,
            beside=[coordinator],
            began_ns=began_ns if row == SEPARATE else None,
        )
        if row == RUNNING:
            results.add(MEMORY, COORDINATOR, EACH, "MB", sizes.pop(coordinator.name))
            results.add(MEMORY, AGENT, EACH, "MB", max(sizes.values()))


def two_torchruns(results: Results) -> None:
    with Trial() as trial:
        command = torchrun(*meet_at(free_endpoint()), "--rdzv-id", "launch")
        sizes = run(results, trial, TORCHRUN, [command] * 2, workers=2)
        results.add(MEMORY, WITH_STORE, EACH, "MB", max(sizes.values()))
        results.add(MEMORY, WITHOUT_STORE, EACH, "MB", min(sizes.values()))


def importing(launcher: Launcher, workers: int, results: Results) -> None:
    with Trial() as trial:
        marks = Marks(trial.folder)
        job = Job(trial, launcher, marks.command, nodes=1, workers=workers)
        world = marks.await_world(workers, (), IMPORT_LIMIT_S, job.ends)
        time.sleep(SETTLE_S)
        job.check_forked(world.pids)
        row = f"{workers} worker{'s' if workers > 1 else ''}: {launcher}"
        results.add(TORCH, row, IN_MAIN, "s", (world.main_ns - job.began_ns) / 1e9)
        results.add(TORCH, row, ALL, "MB", job.measure_memory())
        marks.close()


KINDS: tuple[Callable[[Results], None], ...] = (
    *(standalone, standalone_torchrun),
    *(hosted, separate, running, two_torchruns),
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Start, end and memory of a job.")
    parser.add_argument(
        "--runs", type=int, default=RUNS_MIN, help=f"at least {RUNS_MIN} for a claim"
    )
    parser.add_argument(
        "--workers", type=int, nargs="+", default=WORKERS, metavar="N", help="that import torch"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples here")
    arguments = parser.parse_args()
    if min(arguments.runs, *arguments.workers) < 1:
        parser.error("--runs and --workers must be at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    # A plain SIGTERM would end this process and leave the launchers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results = Results(arguments.json)
    kinds = list(KINDS)
    kinds += [partial(importing, one, n) for n in arguments.workers for one in Launcher]
    try:
        for number in range(arguments.runs + 1):
            # The first run does not count: it reads files from the disk.
            for kind in kinds:
                kind(results if number else Results())
            results.write()
            print(f"run {number} of {arguments.runs}", file=sys.stderr)
    except MeasurementFailed as error:
        notes = getattr(error, "__notes__", [])
        print(f"measurement failed: {error}", *notes, sep="\n", file=sys.stderr)
        return 1
    print(render_results(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
