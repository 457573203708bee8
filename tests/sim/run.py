"""Run the simulation from the command line: `python tests/sim/run.py --seeds 0:1000`.

One failing seed is enough: `--seeds 17 --trace` prints its history. `--faults crash,partition` and
`--option nodes_max=3` set what every seed would else draw for itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
if __package__ in (None, ""):
    sys.path[0] = str(ROOT / "tests")

from sim.seeds.campaign import Summary, run_seed, run_seeds  # noqa: E402  # after the path is set
from sim.seeds.coverage import EXPECTED  # noqa: E402  # the same
from sim.seeds.faults import changed, draw_faults  # noqa: E402  # the same

FAILURES_SHOWN_MAX = 20


def main() -> int:
    """Run the given seeds; return 1 if any failed."""
    parser = argparse.ArgumentParser(description="simulate the cores of coordinator and agents")
    parser.add_argument("--seeds", default="0:1000", help="one seed, or first:end (default 0:1000)")
    parser.add_argument("--processors", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--counts", action="store_true", help="print how often what happened")
    parser.add_argument(
        "--keep-going", action="store_true", help="do not stop at the first failure"
    )
    parser.add_argument("--faults", help="the only kinds of faults, with commas")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="a field of Faults"
    )
    args = parser.parse_args()
    options = dict(one.partition("=")[::2] for one in args.option)
    if args.faults is not None:
        options["kinds"] = args.faults
    try:
        changed(draw_faults(Random(0)), options)
    except ValueError as error:
        parser.error(str(error))
    first, _, end = args.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    if args.trace:
        return _trace(seeds[0], options)
    summary = Summary()
    for result in run_seeds(seeds, args.processors, options):
        summary.add(result)
        if result.failure and len(summary.failures) <= FAILURES_SHOWN_MAX:
            print(f"seed {result.seed} failed {result.failure}", flush=True)
            print(f"    with {result.options}", flush=True)
        if result.failure and not args.keep_going:
            break
    _print(summary, args.counts, "".join(f" --option {one}={options[one]}" for one in options))
    return 1 if summary.failures else 0


def _trace(seed: int, options: dict[str, str]) -> int:
    result = run_seed(seed, options, is_traced=True)
    print(result.options)
    for line in result.trace:
        print(line)
    print(result.failure or "passed", f"digest {result.digest}")
    return 1 if result.failure else 0


def _print(summary: Summary, with_counts: bool, options: str) -> None:
    took_s = summary.elapsed_s()
    if with_counts:
        for (kind, name), count in sorted(summary.coverage.counts.items()):
            print(f"  {kind:14} {name:32} {count}")
    print(
        f"{summary.seeds} seeds, {summary.steps} coordinator steps in {took_s:.1f} s "
        f"({summary.steps / took_s:.0f} steps/s), {summary.virtual_ms / 3_600_000:.1f} h simulated"
    )
    missing = summary.coverage.missing()
    names = ", ".join(f"{kind} {name}" for kind, name in missing) or "none"
    print(f"transitions: {len(EXPECTED) - len(missing)} of {len(EXPECTED)}; missing: {names}")
    if summary.failures:
        seeds = [result.seed for result in summary.failures]
        print(f"{len(seeds)} failed: {seeds[:FAILURES_SHOWN_MAX]} at commit {commit()}")
        print(f"reproduce: python tests/sim/run.py --seeds {seeds[0]}{options} --trace")


def commit() -> str:
    """Return the commit that is checked out, marked if files differ from it."""
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return asked.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
