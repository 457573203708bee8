"""What all benchmarks share: how they are called, how they end, and what they print and keep."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.results import Results
from harness.tables import render_results
from harness.trial import MeasurementFailed

Wrong = Sequence[str]
"""What a benchmark has found wrong, each in one line."""


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every benchmark."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results here")
    return parser


def run(
    measure: Callable[[argparse.Namespace, Results], Wrong | Coroutine[Any, Any, Wrong]],
    arguments: argparse.Namespace,
) -> NoReturn:
    """Measure, print all results, and end the process: with 1 if something was wrong.

    Args:
        measure: gets the arguments, and the results to add to.
        arguments: those of `make_parser`, and more.
    """
    # A plain SIGTERM would end this process and leave behind what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results = Results(arguments.json)
    try:
        found = measure(arguments, results)
        wrong = asyncio.run(found) if asyncio.iscoroutine(found) else found
    except MeasurementFailed as error:
        print_failure(error)
        wrong = [f"not everything was measured: {error}"]
    results.wrong = list(wrong)
    results.write()
    print(render_results(results))
    if wrong:
        print("", *wrong, sep="\n")
    # Skip the end of the interpreter: closing thousands of channels takes grpc.aio minutes, and it
    # has been seen to hang there.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if wrong else 0)


def print_failure(error: MeasurementFailed) -> None:
    """Print why something was not measured, with the logs."""
    notes = getattr(error, "__notes__", [])
    print(f"measurement failed: {error}", *notes, sep="\n", file=sys.stderr)
