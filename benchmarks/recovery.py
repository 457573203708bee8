"""How soon training runs again after a failure, and what standbys cost: all in one run.

Workers import torch and use gloo. Measured is from SIGKILL of a worker, or of an agent with its
workers, until the last worker of the next world is in its main program with torch imported, and
until the last one has done its first all-reduce. The launchers take turns: ours with and without
`--warm`, torchrun as it comes and in its quickest setting, and NVIDIA's ft_launcher, which gets a
separate environment with the same torch. Then the memory of standbys, and what they cost the
training beside them.

    python benchmarks/recovery.py --wheel --json recovery.json

With 5 repeats it takes about 35 minutes on two idle cores, and at most 75: the cost alone takes 10
at most. `--only` leaves parts out. --wheel installs a wheel of this checkout and measures that.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from harness.installed import REPOSITORY, clean_environment, run_installed
from harness.trial import MeasurementFailed
from launch import describe_machine
from recoveries import cost, losses, memory, tables
from recoveries.launchers import Launcher, describe_nvidia, find_refusal
from recoveries.losses import Loss, Series

REPEATS_MIN = 5
"""Fewest repeats for a claim."""
PAUSE_S = 1.0
"""How long a world runs before it is harmed, at least."""
COST_LIMIT_S = 600.0
WORKERS = 2
"""Workers of each of the two nodes."""
SIZES = (1, 4, 8)
"""Workers of a node whose standbys are weighed."""
PARTS = (*(loss.value for loss in Loss), "memory", "cost")
NVIDIA = "nvidia-resiliency-ext"


@dataclass
class Results:
    """Everything that was measured."""

    series: list[Series] = field(default_factory=list)
    memory: list[memory.Memory] = field(default_factory=list)
    costs: list[cost.Cost] = field(default_factory=list)


def install_nvidia(folder: Path) -> Path | None:
    """Make an environment with NVIDIA's launcher and the torch that is installed here.

    Returns: its Python; None when it cannot be installed.
    """
    python = folder / "nvidia" / "bin" / "python"
    torch = metadata.version("torch").partition("+")[0]
    install = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    constraints = ["--constraint", str(REPOSITORY / "constraints.txt")]
    try:
        for command in (
            [sys.executable, "-m", "venv", str(python.parent.parent)],
            [*install, *constraints, f"torch=={torch}", "numpy", NVIDIA],
        ):
            subprocess.run(command, check=True, env=clean_environment(), stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"{NVIDIA} cannot be installed: {error}", file=sys.stderr)
        return None
    return python


def measure(arguments: argparse.Namespace, nvidia: Path | None) -> Results:
    """Take all measurements; the launchers take turns, one repeat each after its start."""
    results = Results()
    launchers = [one for one in Launcher if one is not Launcher.NVIDIA or nvidia is not None]
    if arguments.launchers:
        launchers = [one for one in launchers if one.name.lower() in arguments.launchers]
    for loss in Loss:
        if loss.value not in arguments.only:
            continue
        found = [Series(launcher, loss) for launcher in launchers]
        for _ in range(arguments.turns):
            for series in found:
                repeats = -(-arguments.repeats // arguments.turns)
                python = nvidia or Path(sys.executable)
                losses.measure(series, repeats, arguments.workers, python, PAUSE_S)
        results.series += found
    if "memory" in arguments.only:
        results.memory = [memory.measure(size) for size in arguments.sizes]
    if "cost" in arguments.only:
        results.costs = cost.measure(arguments.cost_limit)
    return results


def print_tables(results: Results, report: dict[str, object]) -> None:
    print(*(f"- {name}: {value}" for name, value in report.items()), sep="\n")
    for loss in Loss:
        if any(series.loss is loss for series in results.series):
            print("", tables.render_losses(loss, results.series), sep="\n")
    if any(series.rounds for series in results.series):
        print("", tables.render_timelines(results.series), sep="\n")
    if results.series:
        print("", *(f"* {note}" for note in tables.render_notes(results.series)), sep="\n")
    if results.memory:
        print("", tables.render_memory(results.memory), sep="\n")
    if results.costs:
        print("", tables.render_costs(results.costs), sep="\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How soon training runs again after a failure.")
    parser.add_argument(
        "--repeats", type=int, default=REPEATS_MIN, help=f"at least {REPEATS_MIN} for a claim"
    )
    parser.add_argument(
        "--turns", type=int, default=2, help="how many jobs of each launcher are started"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--launchers",
        nargs="+",
        choices=[one.name.lower() for one in Launcher],
        help="leave the others out",
    )
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help="of each node, where something is killed"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument(
        "--cost-limit", type=float, default=COST_LIMIT_S, help="seconds for the cost, at most"
    )
    parser.add_argument(
        "--nvidia",
        type=Path,
        metavar="PYTHON",
        help="Python of an environment with NVIDIA's launcher; without it, one is made",
    )
    parser.add_argument(
        "--wheel", action="store_true", help="install a wheel of this checkout, measure that"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples here")
    arguments = parser.parse_args()
    if min(arguments.repeats, arguments.turns, arguments.workers) < 1:
        parser.error("--repeats, --turns and --workers must be at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    # A plain SIGTERM would end this process and leave the launchers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.wheel:
        rest = [word for word in sys.argv[1:] if word != "--wheel"]
        return run_installed(Path(__file__).resolve(), rest)
    began, load = datetime.now(UTC), os.getloadavg()[0]
    wants_nvidia = bool({loss.value for loss in Loss} & set(arguments.only))
    if arguments.launchers:
        wants_nvidia = wants_nvidia and Launcher.NVIDIA.name.lower() in arguments.launchers
    with tempfile.TemporaryDirectory(prefix="nvidia-") as folder:
        nvidia: Path | None = arguments.nvidia
        if nvidia is None and wants_nvidia:
            nvidia = install_nvidia(Path(folder))
        refusal = find_refusal(nvidia) if wants_nvidia else "it was left out"
        try:
            results = measure(arguments, None if refusal else nvidia)
        except MeasurementFailed as error:
            notes = getattr(error, "__notes__", [])
            print(f"measurement failed: {error}", *notes, sep="\n", file=sys.stderr)
            return 1
        report: dict[str, object] = {
            **describe_machine(),
            "load before": round(load, 2),
            "date": began.isoformat(timespec="seconds"),
            "took": f"{(datetime.now(UTC) - began).total_seconds() / 60:.0f} min",
            "command": shlex.join(["python", *sys.argv]),
            "ft_launcher": refusal or describe_nvidia(nvidia or Path(sys.executable)),
        }
    print_tables(results, report)
    if arguments.json:
        arguments.json.write_text(json.dumps({**report, **asdict(results)}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
