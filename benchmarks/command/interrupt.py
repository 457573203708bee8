"""How long Ctrl-C takes: from SIGINT at the launcher to its end, with idle workers.

The launchers take turns (A B A B) on one machine, in one run. The workers keep Python's own signal
handling, so each ends with KeyboardInterrupt, without torch or with torch imported. With torch, the
teardown of the interpreter takes most of the time, and more on a busy machine. So the table also
shows how long the launcher takes after its last worker has ended. SIGINT goes to the launcher
alone, as in a terminal, because workers run in separate sessions. Processes of the job that outlive
the launcher are counted.

    python benchmarks/command/interrupt.py --repeats 20 --json interrupt.json
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from harness.trial import WAIT_LIMIT_S, WORKER_SOURCE, MeasurementFailed, Trial, list_tree
from launch import Launcher, Metric, Samples, describe_machine, render_table, summarize

REPEATS_MIN = 7
"""Fewest repeats for a claim about median and spread."""
SETTLE_S = 0.2
"""Time from the last worker's report to SIGINT, after which all processes are idle."""
TARGET_S = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """How many workers, and whether they have imported torch."""

    workers: int
    with_torch: bool = False

    def metrics(self) -> tuple[Metric, Metric]:
        """Return the rows of the whole time, and of the part after the last worker's end."""
        what = f"{self.workers} idle worker{'s' if self.workers > 1 else ''}"
        what += " with torch" if self.with_torch else ""
        whole = Metric(f"{what}: SIGINT to the launcher's end", "s", value_max=TARGET_S)
        return whole, Metric(f"{what}: the last one's end to the launcher's", "s")


SETTINGS = (Setting(1), Setting(2), Setting(8), Setting(2, with_torch=True))


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Results of one Ctrl-C."""

    whole_s: float
    """From SIGINT to the launcher's end."""
    after_workers_s: float
    """From the last worker's end to the launcher's."""
    left: int
    """Processes of the job that still existed then."""


def await_end(pidfds: Sequence[int], deadline_s: float) -> int:
    """Wait until all of these processes have ended; return when, in ns."""
    left = set(pidfds)
    while left:
        ended = select.select(list(left), [], [], max(0.0, deadline_s - time.monotonic()))[0]
        if not ended:
            raise MeasurementFailed(f"{len(left)} processes still run after SIGINT")
        left.difference_update(ended)
    return time.monotonic_ns()


def measure(launcher: Launcher, setting: Setting) -> Interrupted:
    binary = "node-agent" if launcher is Launcher.RALLYPOINT else "torchrun"
    with Trial() as trial, ExitStack() as stack:
        script, inbox = trial.script
        if setting.with_torch:
            script = str(trial.folder / "torch_worker.py")
            Path(script).write_text(f"import torch\n{WORKER_SOURCE}")
        flags = ["--standalone", "--nproc-per-node", str(setting.workers)]
        agent = trial.start([binary, *flags, script, inbox])
        workers = [os.pidfd_open(stamp.pid) for stamp in trial.collect(setting.workers)]
        for pidfd in workers:
            stack.callback(os.close, pidfd)
        time.sleep(SETTLE_S)
        tree = list_tree(agent.popen.pid).keys() - {agent.popen.pid}
        began_ns = time.monotonic_ns()
        os.kill(agent.popen.pid, signal.SIGINT)
        deadline_s = time.monotonic() + WAIT_LIMIT_S
        workers_ns = await_end(workers, deadline_s)
        ended_ns = await_end([agent.pidfd], deadline_s)
        left = sum(Path(f"/proc/{pid}").exists() for pid in tree)
    return Interrupted((ended_ns - began_ns) / 1e9, (ended_ns - workers_ns) / 1e9, left)


def collect_samples(repeats: int) -> tuple[Samples, dict[str, int]]:
    """Measure every setting `repeats` times, after one uncounted run; add up what was left."""
    samples: Samples = {}
    left_over = {launcher.value: 0 for launcher in Launcher}
    for setting in SETTINGS:
        for repeat in range(repeats + 1):
            for launcher in Launcher:
                found = measure(launcher, setting)
                print(f"{repeat} {launcher} {setting}: {found}", file=sys.stderr)
                left_over[launcher] += found.left
                values = (found.whole_s, found.after_workers_s)
                for metric, value in zip(setting.metrics(), values, strict=True):
                    if repeat > 0:
                        samples.setdefault(metric, {}).setdefault(launcher, []).append(value)
    return samples, left_over


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How long Ctrl-C takes, side by side.")
    parser.add_argument(
        "--repeats", type=int, default=20, help=f"at least {REPEATS_MIN} for a claim (20)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples here")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    # A plain SIGTERM would end this process and leave the launchers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began, load = datetime.now(UTC), os.getloadavg()[0]
    try:
        samples, left_over = collect_samples(arguments.repeats)
    except MeasurementFailed as error:
        notes = getattr(error, "__notes__", [])
        print(f"measurement failed: {error}", *notes, sep="\n", file=sys.stderr)
        return 1
    report: dict[str, object] = {
        **describe_machine(),
        "load before": round(load, 2),
        "date": began.isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "repeats": arguments.repeats,
        "processes left at the launcher's end": left_over,
    }
    rows = [summarize(metric, values) for metric, values in samples.items()]
    print(render_table(report, rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({**report, "measurements": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
