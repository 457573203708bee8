"""How long N rendezvous handlers take to meet: ours beside torch's own c10d, in one run.

Every handler calls next_rendezvous once, all at the same time, and the time is that of the last one
to return. A third part loses nodes. The two back ends take turns. The parts:

    joins     a process for each handler, as on a cluster
    threads   all handlers are threads of one process
    losses    under unmodified torchrun: until the survivors of a lost node run again

    python benchmarks/rendezvous.py --nodes 8,32,64,128 --repeats 5 --json rendezvous.json
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.installed import clean_environment
from harness.trial import MeasurementFailed, Trial
from launch import describe_machine
from meeting.losses import LIMIT_S, SHORT, Loss, Losses, lose_once

CROWD = Path(__file__).with_name("meeting") / "crowd.py"
WINDOW_S = 2.6
"""A coordinator that has just started forms no round for this long."""
MARGIN_S = 200.0
"""What a crowd may need beside the rendezvous: to import torch, to fork, and to end."""
TARGETS = {64: 0.05, 128: 0.01}
"""Greatest ratio of our median to that of c10d that we aim for, by number of nodes."""
OURS, THEIRS = "rallypoint", "c10d"
PARTS = ("joins", "threads", "losses")


@dataclass(slots=True)
class Series:
    """Repeats of one size, as seconds until the last handler had joined."""

    part: str
    nodes: int
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    late: int = 0
    """Repeats in which c10d had not met within the limit, which then counts as its time."""

    def row(self) -> str:
        """Return the row of the table."""
        if not self.ours:
            return f"| {self.part} | {self.nodes} | - | {text(self.theirs)} | - | - |"
        ratio = statistics.median(self.ours) / statistics.median(self.theirs)
        late = f" ({self.late} gave up)" if self.late else ""
        target = TARGETS.get(self.nodes)
        cells = (
            text(self.ours),
            text(self.theirs) + late,
            f"{ratio:.3f}",
            "-" if target is None else f"{target} ({'met' if ratio <= target else 'missed'})",
        )
        return f"| {self.part} | {self.nodes} | {' | '.join(cells)} |"


def text(samples: list[float]) -> str:
    if not samples:
        return "-"
    return f"{statistics.median(samples):.3f} s ({min(samples):.3f}-{max(samples):.3f})"


def join(
    backend: str, address: str, nodes: int, run: str, limit_s: float, *, threads: bool
) -> float | None:
    """Return when the last of `nodes` handlers had joined, in s, or None after the limit."""
    argv = [sys.executable, str(CROWD), "--backend", backend, "--run-id", run]
    argv += ["--nodes", str(nodes), "--limit", str(limit_s), "--endpoint", address]
    argv += ["--threads"] * threads
    # Its own process group: an end of this process ends the whole crowd.
    crowd = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=clean_environment(),
    )
    try:
        found, errors = crowd.communicate(timeout=limit_s + MARGIN_S)
    except subprocess.TimeoutExpired as error:
        raise MeasurementFailed(f"the crowd of {backend} x {nodes} does not end") from error
    finally:
        if crowd.poll() is None:
            os.killpg(crowd.pid, signal.SIGKILL)
            crowd.wait()
    if crowd.returncode:
        tail = errors.decode(errors="replace")[-2000:]
        raise MeasurementFailed(f"{backend} x {nodes} failed:\n{tail}")
    times: list[float] | None = json.loads(found)
    return None if times is None else times[-1]


def measure(address: str, chosen: argparse.Namespace) -> Iterator[Series]:
    """Yield the series of each part and size; the back ends take turns."""
    for part in [part for part in chosen.only if part != "losses"]:
        for nodes in chosen.nodes:
            series = Series(part, nodes)
            for repeat in range(chosen.repeats):
                for backend in chosen.backends:
                    run = f"{part}-{nodes}-{repeat}"
                    threads = part == "threads"
                    took_s = join(backend, address, nodes, run, chosen.limit, threads=threads)
                    print(f"{part} {nodes} {backend}: {took_s}", file=sys.stderr)
                    if took_s is None and backend == OURS:
                        raise MeasurementFailed(f"{nodes} of our handlers did not meet")
                    series.late += took_s is None
                    samples = series.ours if backend == OURS else series.theirs
                    samples.append(chosen.limit if took_s is None else took_s)
            yield series


def measure_losses(chosen: argparse.Namespace) -> list[str]:
    """Return the rows of the table of losses."""
    rows = []
    for loss in Loss:
        found = {backend: Losses(loss, backend) for backend in chosen.backends}
        for _ in range(chosen.repeats):
            for backend, losses in found.items():
                took_s = lose_once(backend, loss)
                print(f"{loss} {backend}: {took_s}", file=sys.stderr)
                if took_s is None:
                    losses.never += 1
                else:
                    losses.samples.append(took_s)
        rows.append(f"| {loss} | {' | '.join(losses.text() for losses in found.values())} |")
    return rows


def numbers(given: str) -> list[int]:
    return [int(part) for part in given.split(",")]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how rendezvous handlers meet.")
    parser.add_argument("--nodes", type=numbers, default=[8, 32, 64, 128], metavar="N,…")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for c10d to meet")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples here")
    parser.add_argument("--backends", nargs="+", default=[OURS, THEIRS], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.only = chosen.only or PARTS
    return chosen


def main() -> int:
    chosen = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report: dict[str, object] = {
        **describe_machine(),
        "load before": round(os.getloadavg()[0], 2),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "repeats": chosen.repeats,
    }
    found: list[Series] = []
    losses: list[str] = []
    failure = None
    try:
        with Trial() as trial:
            command = ["coordinator", "--host=127.0.0.1", "--port=0", "--log-level=error"]
            address = trial.read_address(trial.start(command, stdout=subprocess.PIPE))
            time.sleep(WINDOW_S)
            for series in measure(address, chosen):
                found.append(series)
        if "losses" in chosen.only:
            losses = measure_losses(chosen)
    except MeasurementFailed as error:
        failure = error
    report["load after"] = round(os.getloadavg()[0], 2)
    lines = [f"- {name}: {value}" for name, value in report.items()]
    lines += [
        "",
        "| part | nodes | Rallypoint | c10d | ratio | target |",
        "|---|---|---|---|---|---|",
    ]
    lines += [series.row() for series in found]
    lines += ["", f"Losses, c10d with {SHORT}, at most {LIMIT_S:g} s:", ""]
    lines += [f"| loss | {' | '.join(chosen.backends)} |", "|---|---|---|", *losses]
    print("\n".join(lines))
    if chosen.json:
        samples = [asdict(series) for series in found]
        chosen.json.write_text(json.dumps({**report, "series": samples}, indent=2) + "\n")
    if failure is not None:
        print(f"measurement failed: {failure}", *getattr(failure, "__notes__", []), file=sys.stderr)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
