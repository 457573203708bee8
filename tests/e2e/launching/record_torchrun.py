"""Runs torchrun with every scenario whose record is stale, and writes down what came of it.

    make record-torchrun                  # what is stale
    make record-torchrun ARGS="--all"     # everything
    make record-torchrun ARGS="events"    # scenarios by name

A run that its own check does not accept is not recorded, and neither is one whose record would not
be accepted in its place.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from support.scenarios import SCENARIOS
from support.torchrun import records
from support.torchrun.launchers import Launcher, Scenario, run_scenario

AT_ONCE = 2
"""torchrun spends a second and more of processor time on the import of torch."""


def record(scenario: Scenario) -> None:
    """Run torchrun, and write down what came of it once it was checked."""
    with _folder() as folder:
        ran = run_scenario(scenario, Launcher.TORCHRUN, folder)
        scenario.check(ran)
        made = records.make_record(scenario, ran)
    with _folder() as folder:
        scenario.check(records.replay(made, folder))
    records.save(scenario, made)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        yield Path(folder)


def main(argv: Sequence[str]) -> int:
    """Record, say what was done, and remove what belongs to no scenario."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="scenarios (default: those with stale records)")
    parser.add_argument("--all", action="store_true", help="every scenario")
    args = parser.parse_args(argv)
    chosen = [
        scenario
        for scenario in SCENARIOS
        if args.all
        or scenario.name in args.names
        or (not args.names and records.find_staleness(scenario))
    ]
    failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [(scenario.name, pool.submit(record, scenario)) for scenario in chosen]
        for name, run in runs:
            if error := run.exception():
                failed += 1
                print(f"{name}: not recorded: {type(error).__name__}: {error}", file=sys.stderr)
            else:
                print(f"{name}: recorded")
    for path in records.find_unused(SCENARIOS):
        path.unlink()
        print(f"{path.name}: removed, there is no such scenario")
    print(f"{len(chosen) - failed} of {len(SCENARIOS)} scenarios recorded, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
