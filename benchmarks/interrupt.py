"""How long Ctrl-C takes: from SIGINT at the launcher to its end, with workers that are idle.

The launchers take turns (A B A B), on one machine and in one run. The workers leave Python's own
handling of signals as it is, so each dies of KeyboardInterrupt: alone, or with torch imported,
whose teardown is then part of what the launcher waits for. Each launcher is its own session, so
SIGINT comes to it alone, as a terminal's does for workers in sessions of their own. What is left
of the job when its launcher has ended is counted too.

    python benchmarks/interrupt.py --repeats 20 --json interrupt.json
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from launch import Launcher, Metric, Samples, describe_machine, render_table, summarize
from trial import WAIT_LIMIT_S, WORKER_SOURCE, MeasurementFailed, Trial, list_tree

REPEATS_MIN = 7
"""The smallest number of repeats whose median and spread are worth printing."""
SETTLE_S = 0.2
"""From the last worker's first words to SIGINT: launcher and workers are idle then."""
TARGET_S = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: how many workers, and whether they have imported torch."""

    workers: int
    with_torch: bool = False

    def metric(self) -> Metric:
        kind = "that have imported torch" if self.with_torch else "of plain Python"
        title = f"SIGINT to the launcher's end, {self.workers} idle workers {kind}"
        return Metric(title, "s", value_max=TARGET_S)


SETTINGS = (Setting(1), Setting(2), Setting(8), Setting(2, with_torch=True))


def measure(launcher: Launcher, setting: Setting) -> tuple[float, int]:
    """Return how long the launcher took to end, in seconds, and how many processes it left."""
    binary = "node-agent" if launcher is Launcher.RALLYPOINT else "torchrun"
    with Trial() as trial:
        script, inbox = trial.script
        if setting.with_torch:
            script = str(trial.folder / "torch_worker.py")
            Path(script).write_text(f"import torch\n{WORKER_SOURCE}")
        flags = ["--standalone", "--nproc-per-node", str(setting.workers)]
        agent = trial.start([binary, *flags, script, inbox])
        trial.collect(setting.workers)
        time.sleep(SETTLE_S)
        tree = list_tree(agent.popen.pid)
        began_ns = time.monotonic_ns()
        os.kill(agent.popen.pid, signal.SIGINT)
        if not select.select([agent.pidfd], [], [], WAIT_LIMIT_S)[0]:
            raise MeasurementFailed(f"{binary} goes on after SIGINT")
        took_s = (time.monotonic_ns() - began_ns) / 1e9
        left = [pid for pid in tree if pid != agent.popen.pid and Path(f"/proc/{pid}").exists()]
        return took_s, len(left)


def collect_samples(repeats: int, settings: Sequence[Setting]) -> tuple[Samples, dict[str, int]]:
    """Measure every setting `repeats` times, after one uncounted run; add up what was left."""
    samples: Samples = {}
    left_over = {launcher.value: 0 for launcher in Launcher}
    for setting in settings:
        metric = setting.metric()
        for repeat in range(repeats + 1):
            for launcher in Launcher:
                took_s, left = measure(launcher, setting)
                print(f"{repeat} {launcher} {metric.title}: {took_s:.3f}", file=sys.stderr)
                left_over[launcher] += left
                if repeat > 0:
                    samples.setdefault(metric, {}).setdefault(launcher, []).append(took_s)
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
        samples, left_over = collect_samples(arguments.repeats, SETTINGS)
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
