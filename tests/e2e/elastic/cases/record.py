"""Runs every case whose record is stale with torch's API, and writes down what came of it.

make record-elastic                     # what is stale
make record-elastic ARGS="--all"        # everything
make record-elastic ARGS="exit_with_0"  # cases by name
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.elastic import records
from support.elastic.program import api
from support.elastic.program.case import CASES, Case
from support.elastic.runs import run_case

AT_ONCE = 2
"""torch spends a second and more of processor time on its import."""


def record(case: Case) -> None:
    """Run a case with torch, and write down what came of it."""
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        records.save(case, run_case(case, api.TORCH, Path(folder), "localhost:1"))


def main(argv: Sequence[str]) -> int:
    """Record, report what was done, and remove what belongs to no case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="cases (default: those with stale records)")
    parser.add_argument("--all", action="store_true", help="every case")
    args = parser.parse_args(argv)
    cases = list(CASES.values())
    chosen = [
        case
        for case in cases
        if args.all or case.name in args.names or (not args.names and records.find_staleness(case))
    ]
    failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [(case.name, pool.submit(record, case)) for case in chosen]
        for name, run in runs:
            if error := run.exception():
                failed += 1
                print(f"{name}: not recorded: {type(error).__name__}: {error}", file=sys.stderr)
            else:
                print(f"{name}: recorded", flush=True)
    for path in records.find_unused(cases):
        path.unlink()
        print(f"{path.name}: removed, there is no such case")
    print(f"{len(chosen) - failed} of {len(cases)} cases recorded, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
