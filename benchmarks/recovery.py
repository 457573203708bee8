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

from harness.jobs import Job, Launcher, find_launchers
from harness.marks import COUNT, MAIN, REDUCED, STEPS, TOOK, TRAINING, Marks
from harness.program import Wrong, make_parser, print_failure, run
from harness.results import Results
from harness.tables import find_cell
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
IN_A_ROW = 20
"""Kills of one job."""
SPARE_LIMIT_S = 45.0
"""torchrun does not come back: its node would learn of the loss only when a new one joins."""
SPARE_PAUSE_S = 3.0
"""How long a job with a spare runs before its agent is killed: the spare has then joined, too."""
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


def measure_row(launcher: Launcher, workers: int, first: int, results: Results) -> None:
    """Kill one worker of a job after the other.

    Raises:
        MeasurementFailed: the job did not start, or did not survive.
    """
    size = NODES * workers
    with Trial() as trial, closing(Marks(trial.folder, TRAINING)) as marks:
        job = Job(trial, launcher, marks.script, nodes=NODES, workers=workers, in_haste=True)
        world = marks.await_world(size, (MAIN, REDUCED), START_LIMIT_S, ends=job.ends)
        for victim in range(first, first + IN_A_ROW):
            time.sleep(PAUSE_S)
            old, killed_ns = world.pids, time.monotonic_ns()
            os.kill(old[victim % size], signal.SIGKILL)
            world = marks.await_world(size, (MAIN, REDUCED), BACK_LIMIT_S, old=old, ends=job.ends)
            job.check_forked(world.pids)
            for column, at_ns in zip(BACK, world.last_ns, strict=True):
                results.add("row", launcher, column, "s", (at_ns - killed_ns) / 1e9)


def measure_spare(launcher: Launcher, workers: int, _: int, results: Results) -> None:
    """Kill an agent that does not host the coordinator or the store; a spare takes its place.

    Raises:
        MeasurementFailed: the job did not start, or did not survive.
    """
    size = NODES * workers
    with Trial() as trial, closing(Marks(trial.folder, TRAINING)) as marks:
        job = Job(trial, launcher, marks.script, nodes=NODES, workers=workers, spares=1)
        world = marks.await_world(size, (MAIN, REDUCED), START_LIMIT_S, ends=job.ends)
        time.sleep(SPARE_PAUSE_S)
        agents = [job.find_agent(pid) for pid in world.pids]
        victim = next(agent for agent in reversed(agents) if agent is not job.agents[0])
        ends = [agent.pidfd for agent in job.agents if agent is not victim]
        killed_ns = time.monotonic_ns()
        victim.popen.kill()
        kinds = (MAIN, REDUCED)
        after = marks.await_world(size, kinds, SPARE_LIMIT_S, old=world.pids, ends=ends)
        for column, at_ns in zip(BACK, after.last_ns, strict=True):
            results.add("spare", launcher, column, "s", (at_ns - killed_ns) / 1e9)


def measure_steps(launcher: Launcher, workers: int, _: int, results: Results) -> None:
    """Count the steps of a training on one node.

    Raises:
        MeasurementFailed: the job did not start, or did not end.
    """
    with Trial() as trial, closing(Marks(trial.folder, STEPS)) as marks:
        Job(trial, launcher, marks.script, nodes=1, workers=workers)
        of = {TOOK: 0, COUNT: 0}
        for mark in marks.until(time.monotonic() + START_LIMIT_S):
            if mark.rank == 0:
                of[mark.kind] = mark.clock_ns
            if all(of.values()):
                results.add("steps", launcher, "steps a second", "", of[COUNT] / of[TOOK] * 1e9)
                return
        raise MeasurementFailed("the job did not train")


def compare_steps(results: Results) -> None:
    """Add how many steps each pair lost to the forkserver, in percent."""
    cold, beside = (
        find_cell(results, "steps", one, "steps a second").samples
        for one in (Launcher.COLD, Launcher.PRELOAD)
    )
    lost = [100 * (1 - two / one) for one, two in zip(cold, beside, strict=True)]
    results.add("lost", "beside a forkserver", "steps lost", "%", *lost)


CASES = {
    "worker": measure_one,
    "row": measure_row,
    "spare": measure_spare,
    "steps": measure_steps,
}
REPEATS = {"worker": REPEATS_MIN, "row": 1, "spare": 5, "steps": 30}
"""For a claim."""


def take_turn(
    case: str, number: int, workers: int, launchers: list[Launcher], results: Results
) -> None:
    """Measure every launcher once; each is the first one in turn."""
    at = number % len(launchers)
    for launcher in (*launchers[at:], *launchers[:at]):
        began_s = time.monotonic()
        try:
            CASES[case](launcher, workers, number, results)
        except MeasurementFailed as error:
            print_failure(error)
            table = TABLE if case == "worker" else case
            results.miss(table, launcher, BACK[1] if case != "steps" else "steps a second", "s")
        took = f"{time.monotonic() - began_s:.0f} s"
        print(f"{case}, turn {number}, {launcher}: {took}", file=sys.stderr)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser("How soon training runs again after a failure.")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=["worker"])
    parser.add_argument("--repeats", type=int, help=f"for a claim: {REPEATS}")
    parser.add_argument(
        "--launchers",
        nargs="+",
        choices=[one.name.lower() for one in Launcher],
        default=[one.name.lower() for one in find_launchers()],
        help="leave the others out",
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="of each node")
    arguments = parser.parse_args()
    if min(arguments.repeats or 1, arguments.workers) < 1:
        parser.error("--repeats and --workers must be at least 1")
    return arguments


def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Measure all launchers in turn."""
    # So that no launcher is the one that reads torch from the disk.
    subprocess.run([sys.executable, "-c", "import torch.distributed.run"], check=True)
    launchers = [one for one in Launcher if one.name.lower() in arguments.launchers]
    ours: list[Launcher] = [one for one in (Launcher.COLD, Launcher.PRELOAD) if one in launchers]
    for case in arguments.only:
        taking = ours if case == "steps" else launchers
        for number in range(arguments.repeats or REPEATS[case]):
            take_turn(case, number, arguments.workers, taking, results)
            results.write()
    if "steps" in arguments.only and len(ours) == 2:
        compare_steps(results)
    return ()


if __name__ == "__main__":
    run(measure, parse_arguments())
