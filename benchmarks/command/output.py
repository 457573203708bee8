"""Measure what the output of a worker costs the launcher, side by side with torchrun.

One worker writes lines of 100 bytes to standard output under `--tee 3`; this process is the console
and reads as fast as it can. Both launchers run in turn (A B A B), each also with a worker that
writes nothing: what that costs is subtracted, so the start of a launcher does not count.

    python benchmarks/command/output.py --repeats 7 --megabytes 200
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from launch import describe_machine

LAUNCHERS = {"rallypoint": "node-agent", "torchrun": "torchrun"}
LINE_BYTES = 100
WORKER_SOURCE = """\
import os, sys, time
began = time.monotonic()
lines = (b"x" * 99 + b"\\n") * 1_000
for _ in range(int(sys.argv[1]) * 10):
    rest = lines
    while rest:
        rest = rest[os.write(1, rest):]
print(began, time.process_time(), file=open(sys.argv[2], "w"))
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one launcher.

    took_s: from the worker's first statement to the last byte on the console.
    cpu_s: of the launcher, without its worker.
    peak_mb: the most memory that the launcher has had, in 1,000,000 bytes.
    """

    took_s: float
    cpu_s: float
    peak_mb: float


def measure(command: str, megabytes: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="output-") as name:
        folder = Path(name)
        script, stamps, logs = folder / "worker.py", folder / "stamps", folder / "logs"
        script.write_text(WORKER_SOURCE)
        argv = [str(Path(sys.executable).with_name(command)), "--standalone", "--tee", "3"]
        argv += ["--log-dir", str(logs), str(script), str(megabytes), str(stamps)]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        ended_s, shown = time.monotonic(), 0
        while data := os.read(process.stdout.fileno(), 1 << 20):
            ended_s = time.monotonic()
            shown += len(data)
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        (file,) = logs.rglob("stdout.log")
        prefix_bytes = len("[default0]:") * megabytes * 1_000_000 // LINE_BYTES
        assert process.returncode == 0, f"{command} exited with {process.returncode}"
        assert file.stat().st_size == megabytes * 1_000_000, "the file has lost something"
        assert shown == megabytes * 1_000_000 + prefix_bytes, "the console has lost something"
        began_s, worker_cpu_s = map(float, stamps.read_text().split())
    return Run(
        took_s=ended_s - began_s,
        cpu_s=usage.ru_utime + usage.ru_stime - worker_cpu_s,
        peak_mb=usage.ru_maxrss * 1024 / 1e6,
    )


def render(values: list[float], digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what output costs, side by side.")
    parser.add_argument("--repeats", type=int, default=7, help="of each launcher (default: 7)")
    parser.add_argument("--megabytes", type=int, default=200, help="a worker writes (default: 200)")
    parser.add_argument("--only", choices=LAUNCHERS, help="leave the other out")
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else list(LAUNCHERS)
    rates: dict[str, list[float]] = {name: [] for name in names}
    costs: dict[str, list[float]] = {name: [] for name in names}
    peaks: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(arguments.repeats + 1):  # the first only warms the caches
        for name in names:
            idle = measure(LAUNCHERS[name], 0)
            busy = measure(LAUNCHERS[name], arguments.megabytes)
            print(f"run {repeat} {name}: {busy}, idle {idle.cpu_s:.2f} s", file=sys.stderr)
            if repeat:
                rates[name].append(arguments.megabytes / busy.took_s)
                costs[name].append((busy.cpu_s - idle.cpu_s) * 100 / arguments.megabytes)
                peaks[name].append(busy.peak_mb)
    for fact, value in describe_machine().items():
        print(f"- {fact}: {value}")
    print("\n| median (min-max) | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for title, samples, digits in (
        (f"MB/s, worker to console, {arguments.megabytes} MB", rates, 0),
        ("CPU of the launcher, s per 100 MB", costs, 2),
        ("peak memory of the launcher, MB", peaks, 0),
    ):
        print(f"| {title} | " + " | ".join(render(samples[name], digits) for name in names) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
