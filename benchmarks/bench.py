"""Measure every figure of docs/benchmarks.md, from an installed wheel of this checkout.

    python benchmarks/bench.py              all of them, the most important first
    python benchmarks/bench.py --list       which there are, and how long each takes
    python benchmarks/bench.py --only launch recovery
    python benchmarks/bench.py --minutes 32

Each benchmark writes its samples to benchmarks/results/, after every turn. Afterwards
`python benchmarks/page.py` draws the tables and the chart. Nothing else should run meanwhile. When
the time is over, the benchmark that runs is interrupted, and what it has written counts.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from harness.installed import REPOSITORY, clean_environment, install
from harness.results import FOLDER

LOAD_MAX = 1.5
"""Load with which a benchmark begins; that of the benchmark before counts, too."""
CALM_S_MAX = 60.0
"""Longest wait for that."""
END_S_MAX = 30.0
"""How long an interrupted benchmark may take to end what it has started."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One file of results.

    minutes: how long it takes on two idle cores.
    """

    name: str
    script: str
    minutes: float


BENCHMARKS = (
    Benchmark("recovery", "recovery.py", 6),
    Benchmark("launch", "launch.py", 12),
    Benchmark("kills", "recovery.py --only row spare steps", 25),
    Benchmark("failures", "failures.py", 5),
    Benchmark("rounds", "rounds.py", 5),
    Benchmark("commands", "command/status.py", 2),
    Benchmark("journal", "journal.py", 2.5),
    Benchmark("barriers", "barriers.py", 2),
    Benchmark("readers", "command/readers.py", 3),
)


def await_calm(deadline_s: float) -> None:
    """Wait until the load is low, but not for long."""
    until_s = min(deadline_s, time.monotonic() + CALM_S_MAX)
    while os.getloadavg()[0] > LOAD_MAX and time.monotonic() < until_s:
        time.sleep(1)


def run(python: Path, one: Benchmark, deadline_s: float) -> bool:
    """Run a benchmark, at most until the deadline; return whether it came to its end."""
    script, *words = f"benchmarks/{one.script}".split()
    command = [str(python), script, *words, "--json", str(FOLDER / f"{one.name}.json")]
    process = subprocess.Popen(command, cwd=REPOSITORY, env=clean_environment())
    try:
        process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        print(f"{one.name}: the time is over", file=sys.stderr)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S_MAX)
            process.kill()
    return process.wait() == 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure every figure of docs/benchmarks.md.")
    names = [one.name for one in BENCHMARKS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="leave out others")
    parser.add_argument("--minutes", type=float, default=600.0, help="end after so many")
    parser.add_argument("--list", action="store_true", help="only show which there are")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    deadline_s = time.monotonic() + arguments.minutes * 60
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = [one for one in BENCHMARKS if one.name in arguments.only]
    if arguments.list:
        for one in chosen:
            print(f"{one.name:10}  {one.minutes:3g} min  benchmarks/{one.script}")
        return 0
    FOLDER.mkdir(exist_ok=True)
    has_ended = True
    with tempfile.TemporaryDirectory(prefix="installed-") as folder:
        # Without the local part: 2.13.0+cpu is installed as 2.13.0.
        torch = metadata.version("torch").partition("+")[0]
        # torch works without numpy, but warns; its users have it.
        python = install(Path(folder), f"torch=={torch}", "numpy") / "python"
        for one in chosen:
            await_calm(deadline_s)
            if time.monotonic() >= deadline_s:
                print(f"{one.name}: no time is left", file=sys.stderr)
                has_ended = False
                continue
            began_s = time.monotonic()
            has_ended = run(python, one, deadline_s) and has_ended
            print(f"{one.name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    return 0 if has_ended else 1


if __name__ == "__main__":
    sys.exit(main())
