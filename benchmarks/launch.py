"""Start, end and memory of a job beside torchrun: one node, and two nodes of this machine.

First with workers that do not import torch: the launcher is measured. A worker's first statement
reads CLOCK_MONOTONIC, and it waits for SIGTERM to exit with 0 (see `harness/marks.py`). A start is
the time from just before the first command to the last worker's first line; an end that from the
end of the workers until all commands have returned.

Then with workers of one node that import torch: until the last one is in its main program, and the
memory of all processes, workers included. All kinds take turns.

    python benchmarks/launch.py --json benchmarks/results/launch.json
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from harness.jobs import Job, Launcher, find_launchers
from harness.marks import BARE, MAIN, REDUCED, TRAINING, Marks
from harness.marks import START as START_MARK
from harness.program import Wrong, make_parser, run
from harness.quickest import meet_at, torchrun
from harness.results import Results
from harness.trial import WAIT_LIMIT_S, Process, Trial, free_endpoint, measure_memory

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

TWO = ("--nproc-per-node", "2")
COMMANDS: dict[str, Callable[[], list[list[str]]]] = {
    STANDALONE: lambda: [["node-agent", "--standalone", *TWO]],
    STANDALONE_TORCHRUN: lambda: [torchrun("--standalone", *TWO)],
    HOSTED: lambda: [["node-agent", "--nnodes", "2", "--rdzv-endpoint", free_endpoint()]] * 2,
    TORCHRUN: lambda: [torchrun(*meet_at(free_endpoint()), "--rdzv-id", "launch")] * 2,
}
"""One for each node, without the workers' script; those without a coordinator beside them."""
ROWS = (STANDALONE, STANDALONE_TORCHRUN, HOSTED, SEPARATE, RUNNING, TORCHRUN)


def list_commands(row: str, trial: Trial) -> tuple[list[list[str]], list[Process]]:
    """Return the command of each node, and what else belongs to the launcher and runs already."""
    if row in COMMANDS:
        return COMMANDS[row](), []
    coordinator, address = trial.start_coordinator("--startup-window", "0")
    command = ["node-agent", "--coordinator", address, "--nnodes", "2", "--job-id", "launch"]
    return [command] * 2, [coordinator]


def bare(row: str, results: Results) -> None:
    """Run a job of two bare workers to its end, and add what was measured."""
    with Trial() as trial, closing(Marks(trial.folder, BARE)) as marks:
        began_ns = time.monotonic_ns()
        commands, beside = list_commands(row, trial)
        if row != SEPARATE:
            began_ns = time.monotonic_ns()
        nodes = [trial.start([*command, *marks.script]) for command in commands]
        ends = [node.pidfd for node in nodes]
        world = marks.await_world(2, (START_MARK,), WAIT_LIMIT_S, ends=ends)
        time.sleep(SETTLE_S)
        own, sizes = (
            [measure_memory(one.popen.pid, world.pids) for one in some] for some in (beside, nodes)
        )
        released_ns = time.monotonic_ns()
        for pid in world.pids:
            os.kill(pid, signal.SIGTERM)  # they exit with 0
        trial.await_success(nodes)
        ended_ns = time.monotonic_ns()
    results.add(TABLE, row, START, "s", (world.last_ns[0] - began_ns) / 1e9)
    results.add(TABLE, row, END, "s", (ended_ns - released_ns) / 1e9)
    results.add(TABLE, row, LAUNCHERS, "MB", sum(own) + sum(sizes))
    if row == RUNNING:
        results.add(MEMORY, COORDINATOR, EACH, "MB", *own)
        results.add(MEMORY, AGENT, EACH, "MB", max(sizes))
    elif row == TORCHRUN:
        results.add(MEMORY, WITH_STORE, EACH, "MB", max(sizes))
        results.add(MEMORY, WITHOUT_STORE, EACH, "MB", min(sizes))


def importing(launcher: Launcher, workers: int, results: Results) -> None:
    """Run a job of one node whose workers import torch, and add what was measured."""
    with Trial() as trial, closing(Marks(trial.folder, TRAINING)) as marks:
        job = Job(trial, launcher, marks.script, nodes=1, workers=workers)
        world = marks.await_world(workers, (MAIN, REDUCED), IMPORT_LIMIT_S, ends=job.ends)
        time.sleep(SETTLE_S)
        job.check_forked(world.pids)
        row = f"{workers} worker{'s' if workers > 1 else ''}: {launcher}"
        results.add(TORCH, row, IN_MAIN, "s", (world.last_ns[0] - job.began_ns) / 1e9)
        results.add(TORCH, row, ALL, "MB", job.measure_memory())


def parse_arguments() -> argparse.Namespace:
    parser = make_parser("Start, end and memory of a job.")
    parser.add_argument(
        "--runs", type=int, default=RUNS_MIN, help=f"at least {RUNS_MIN} for a claim"
    )
    parser.add_argument(
        "--workers", type=int, nargs="+", default=WORKERS, metavar="N", help="that import torch"
    )
    arguments = parser.parse_args()
    if min(arguments.runs, *arguments.workers) < 1:
        parser.error("--runs and --workers must be at least 1")
    return arguments


def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Measure all kinds in turn."""
    kinds = [partial(bare, row) for row in ROWS]
    kinds += [partial(importing, one, n) for n in arguments.workers for one in find_launchers()]
    for number in range(arguments.runs + 1):
        # The first run does not count: it reads files from the disk.
        for kind in kinds:
            kind(results if number else Results())
        results.write()
        print(f"run {number} of {arguments.runs}", file=sys.stderr)
    return ()


if __name__ == "__main__":
    run(measure, parse_arguments())
