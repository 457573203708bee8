"""Run a simulation from the command line: `python tests/sim/run.py --seeds 0:1000`.

One failing seed is enough: `--seeds 17 --trace` prints its history. `--faults crash,partition` and
`--option nodes_max=3` set what every seed of the cores would else draw for itself. `--world shells`
runs the real shells, `--world owners` coordinators that share etcd.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from random import Random

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).parents[1])

from sim.seeds.campaign import Run, Summary, run_seed, run_seeds
from sim.seeds.coverage import EXPECTED, find_missing
from sim.seeds.faults import changed, draw_faults
from support.tries.commit import find_commit

CORES = ("cores", "owners")
"""Worlds of the cores, which take options."""
WORLDS = (*CORES, "shells", "culprits", "relays")
FAILURES_SHOWN_MAX = 20


def find_run(world: str, options: Mapping[str, str]) -> Run:
    """Return what runs the seeds of a world."""
    if world in CORES:
        return partial(run_seed, options=options)
    from sim.relays.world import RelayedWorld
    from sim.shells import seed
    from sim.shells.culprits import CulpritWorld
    from sim.shells.world import World

    kinds = {"shells": World, "culprits": CulpritWorld, "relays": RelayedWorld}
    return partial(seed.run_seed, kind=kinds[world])


def main() -> int:
    """Run the given seeds; return 1 if any failed."""
    parser = argparse.ArgumentParser(description="simulate coordinators and agents under faults")
    parser.add_argument("--world", choices=WORLDS, default="cores", help="default: cores")
    parser.add_argument("--seeds", default="0:1000", help="one seed, or first:end (default 0:1000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
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
    if options and args.world not in CORES:
        parser.error(f"{args.world} takes no options")
    if args.world == "owners":
        options["owners"] = "1"
    try:
        changed(draw_faults(Random(0)), options)
    except ValueError as error:
        parser.error(str(error))
    first, _, end = args.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    run = find_run(args.world, options)
    if args.trace:
        return _trace(run, seeds[0])
    summary = _run(run, seeds, args.jobs, keeps_going=args.keep_going)
    _print(summary, with_counts=args.counts, is_of_cores=args.world in CORES)
    if summary.failures:
        failed = [result.seed for result in summary.failures]
        told = "".join(f" --option {name}={value}" for name, value in options.items())
        print(f"{len(failed)} failed: {failed[:FAILURES_SHOWN_MAX]} at commit {find_commit()}")
        command = f"python tests/sim/run.py --world {args.world}{told}"
        print(f"reproduce: {command} --seeds {failed[0]} --trace")
    return 1 if summary.failures else 0


def _trace(run: Run, seed: int) -> int:
    result = run(seed, is_traced=True)
    if result.options is not None:
        print(result.options)
    for line in result.trace:
        print(line)
    print(result.rule or "passed", result.failure, f"digest {result.digest}")
    return 1 if result.failure else 0


def _run(run: Run, seeds: Iterable[int], jobs: int, *, keeps_going: bool) -> Summary:
    summary = Summary()
    for result in run_seeds(seeds, jobs, run):
        summary.add(result)
        if result.failure and len(summary.failures) <= FAILURES_SHOWN_MAX:
            print(f"seed {result.seed} failed {result.rule}: {result.failure}", flush=True)
            if result.options is not None:
                print(f"    with {result.options}", flush=True)
        if result.failure and not keeps_going:
            break
    return summary


def _print(summary: Summary, *, with_counts: bool, is_of_cores: bool) -> None:
    took_s, seeds = summary.elapsed_s(), max(1, summary.seeds)
    if with_counts:
        for name, count in sorted(summary.counts.items()):
            row = name if isinstance(name, str) else f"{name[0]:14} {name[1]}"
            print(f"  {row:48} {count}")
    print(
        f"{summary.seeds} seeds in {took_s:.1f} s ({1000 * took_s / seeds:.0f} ms a seed), "
        f"{summary.steps} steps ({summary.steps / took_s:.0f} steps/s), "
        f"{summary.virtual_ms / 3_600_000:.1f} h simulated"
    )
    if is_of_cores:
        missing = find_missing(summary.counts)
        names = ", ".join(f"{kind} {name}" for kind, name in missing) or "none"
        print(f"transitions: {len(EXPECTED) - len(missing)} of {len(EXPECTED)}; missing: {names}")


if __name__ == "__main__":
    gc.freeze()
    sys.exit(main())
