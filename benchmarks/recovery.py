"""How soon workers that import torch train, and train again after SIGKILL of one: beside torchrun.

Two nodes of this machine with two workers each. Measured is the time from the commands, and from
SIGKILL of a worker, until the last worker is in its main program with torch imported, and until the
last one has done its first all-reduce (gloo); and the memory of everything that the launcher runs
beside the workers, on both nodes. Each job is started once and harmed once, so our policies after
failures are those that a user gets. The launchers take turns.

    python benchmarks/recovery.py --json benchmarks/results/recovery.json
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

from harness.jobs import Job, Launcher
from harness.marks import MAIN, REDUCED, TRAINING, Marks
from harness.program import Wrong, make_parser, print_failure, run
from harness.results import Results
from harness.trial import MeasurementFailed, Trial

TABLE = "recovery"
REPEATS_MIN = 9
"""Fewest repeats for a claim."""
NODES, WORKERS = 2, 2
"""And workers of each node."""
START_LIMIT_S = 120.0
BACK_LIMIT_S = 90.0
PAUSE_S = 1.0
"""How long a world runs before it is looked at and harmed, at least."""
STARTED = ("command to all in main", "command to first all-reduce")
BACK = ("SIGKILL to all in main", "SIGKILL to first all-reduce")
LAUNCHERS = "memory of launchers"


def measure_one(launcher: Launcher, workers: int, victim: int, results: Results) -> None:
    """Run one job, kill one of its workers, and add what was measured.

    Raises:
        MeasurementFailed: the job did not start, or did not survive.
    """
    size = NODES * workers
    with Trial() as trial, closing(Marks(trial.folder, TRAINING)) as marks:
        job = Job(trial, launcher, marks.script, nodes=NODES, workers=workers)
        world = marks.await_world(size, (MAIN, REDUCED), START_LIMIT_S, ends=job.ends)
        for column, at_ns in zip(STARTED, world.last_ns, strict=True):
            results.add(TABLE, launcher, column, "s", (at_ns - job.began_ns) / 1e9)
        time.sleep(PAUSE_S)
        job.check_forked(world.pids)
        memory_mb = job.measure_memory(world.pids)
        time.sleep(PAUSE_S)
        killed_ns = time.monotonic_ns()
        os.kill(world.pids[victim % len(world.pids)], signal.SIGKILL)
        old, ends = world.pids, job.ends
        after = marks.await_world(size, (MAIN, REDUCED), BACK_LIMIT_S, old=old, ends=ends)
        job.check_forked(after.pids)
        for column, at_ns in zip(BACK, after.last_ns, strict=True):
            results.add(TABLE, launcher, column, "s", (at_ns - killed_ns) / 1e9)
        results.add(TABLE, launcher, LAUNCHERS, "MB", memory_mb)


def take_turn(number: int, workers: int, launchers: list[Launcher], results: Results) -> None:
    """Measure every launcher once; each is the first one in turn."""
    at = number % len(launchers)
    for launcher in (*launchers[at:], *launchers[:at]):
        began_s = time.monotonic()
        try:
            measure_one(launcher, workers, number, results)
        except MeasurementFailed as error:
            print_failure(error)
            results.miss(TABLE, launcher, BACK[1], "s")
        print(f"turn {number}, {launcher}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser("How soon training runs again after a failure.")
    parser.add_argument(
        "--repeats", type=int, default=REPEATS_MIN, help=f"at least {REPEATS_MIN} for a claim"
    )
    parser.add_argument(
        "--launchers",
        nargs="+",
        choices=[one.name.lower() for one in Launcher],
        default=[one.name.lower() for one in Launcher],
        help="leave the others out",
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="of each node")
    arguments = parser.parse_args()
    if min(arguments.repeats, arguments.workers) < 1:
        parser.error("--repeats and --workers must be at least 1")
    return arguments


def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Measure all launchers in turn."""
    # So that no launcher is the one that reads torch from the disk.
    subprocess.run([sys.executable, "-c", "import torch.distributed.run"], check=True)
    launchers = [one for one in Launcher if one.name.lower() in arguments.launchers]
    for number in range(arguments.repeats):
        take_turn(number, arguments.workers, launchers, results)
        results.write()
    return ()


if __name__ == "__main__":
    run(measure, parse_arguments())
