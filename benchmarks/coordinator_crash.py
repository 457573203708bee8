"""Kill the coordinator again and again, at every kind of moment: no worker and no reader notices.

Four jobs of several nodes with two workers each step and log. One of them is left alone and shares
keys and barriers; in one workers fail; one loses, drains and gains nodes; the runs of one end. Each
crash is aimed at a moment: something is done to a job, a random time passes, and the coordinator
gets SIGKILL. After 0 to 5 s it is started again. Then every job must be exactly what was done to it
(crashes/model.py), and readers that follow everything must never have seen anything taken back
(crashes/facts.py). Differences are printed as they are found, and again at the end; then the exit
code is 1.

With `--state etcd`, three coordinators serve 48 jobs of a store in etcd. One of them is killed,
suspended for longer than its lease, or ended (owners/shared.py); then etcd fails itself
(owners/outages.py).

    python benchmarks/coordinator_crash.py --crashes 100
    python benchmarks/coordinator_crash.py --state etcd
    python benchmarks/coordinator_crash.py --quick --state sqlite:/tmp/journal/journal.sqlite
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack

from crashes.alone import Alone
from crashes.play import Play
from harness.installed import REPOSITORY
from harness.program import Wrong, make_parser, run
from harness.results import Results
from harness.trial import MeasurementFailed
from rallypoint.client import errors

AWAY_S_MAX = 5.0
"""Longest time without a coordinator."""
LIMIT_S = 11 * 60
"""No further crash after so long."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("Kill the coordinator at every kind of moment.")
    parser.add_argument("--crashes", type=int, help="default: 100; with --state etcd 50")
    parser.add_argument("--agents", type=int, default=16, help="default: 16, in four jobs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--state",
        help="as of the coordinator, or `etcd`: three of them, with a new etcd of three members; "
        "default: sqlite in a new folder",
    )
    parser.add_argument("--jobs", type=int, default=48, help="with --state etcd; default: 48")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="default: 660")
    parser.add_argument("--quick", action="store_true", help="3 crashes, of 8 agents or jobs")
    parser.add_argument("--calm", action="store_true", help="kill nothing: checks the model alone")
    arguments = parser.parse_args()
    arguments.away = 1.0 if arguments.quick else AWAY_S_MAX
    if arguments.crashes is None:
        arguments.crashes = 50 if arguments.state == "etcd" else 100
    if arguments.quick:
        arguments.crashes, arguments.agents, arguments.jobs = 3, 8, min(8, arguments.jobs)
    if arguments.agents < 8 or arguments.crashes < 0 or arguments.jobs < 5:
        parser.error("needs 8 agents and 5 jobs")
    return arguments


def make_play(stack: ExitStack, arguments: argparse.Namespace) -> Play:
    """Return what is played, as the arguments say."""
    if arguments.state == "etcd":
        sys.path.append(str(REPOSITORY / "tests"))  # for the etcd of the tests
        from owners.shared import Shared

        return Shared(stack, arguments.jobs, arguments.seed)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="crashes-"))
    state = arguments.state or f"sqlite:{folder}/journal/journal.sqlite"
    return Alone(stack, state, arguments.agents, arguments.seed, arguments.away)


def crash_often(play: Play, arguments: argparse.Namespace, results: Results) -> None:
    """Crash as often as was asked for; print what comes of it as it comes."""
    play.open()
    while play.count < arguments.crashes and play.passed_s() < arguments.limit:
        try:
            play.crash(kills=not arguments.calm)
        except (MeasurementFailed, errors.RallypointError) as error:
            play.note(f"crash {play.count}", str(error))
            play.recover()
        play.settle(f"crash {play.count}")
        print(f"{play.count}, {play.passed_s():.0f} s: {play.describe_last()}", flush=True)
        play.add_crashes(results)
        results.write()
    play.finish()


def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Crash; return what differs."""
    with ExitStack() as stack:
        play = make_play(stack, arguments)
        results.wrong = play.failures
        try:
            crash_often(play, arguments, results)
        finally:
            play.add_totals(results)
            if play.failures:
                print(*play.tail_logs(), sep="\n")
    if play.count < arguments.crashes:
        play.note("the end", f"{play.count} of {arguments.crashes} crashes")
    return play.failures


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's C core would write its own lines
    run(measure, parse_arguments())
