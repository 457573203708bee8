"""How fast a failure reaches all workers, and how fast they run again: agents with bare scripts.

A job of N agents goes through many failures: a worker is killed, an agent is killed. Measured are
the time until SIGTERM has reached the last of the other workers, and the time until the last worker
of the next round has started. The same run also measures a floor: the same workers, started and
signalled by a bare loop.

    python benchmarks/failures.py --json benchmarks/results/failures.json

The workers do not import torch. Our policies after failures are off (see `fleet`), so that one job
can fail again and again; `recovery.py` has jobs with torch and the default policies.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import closing
from enum import StrEnum
from functools import partial
from pathlib import Path

from harness.fleet import Aftermath, OurFleet, end_worker
from harness.results import Results
from harness.stamps import Stamps
from harness.tables import render_results
from harness.trial import WAIT_LIMIT_S, MeasurementFailed, Trial

TABLE = "failures"
REPEATS_MIN = 12
"""Fewest repeats for a claim."""
SETTLE_S = (0.7, 1.7)
"""Range of the random pause between two failures. One heartbeat wide: all phases are as likely."""


class Event(StrEnum):
    WORKER_KILLED = "worker SIGKILL"
    AGENT_KILLED = "agent SIGKILL"

    @property
    def columns(self) -> tuple[str, str]:
        return f"{self}: SIGTERM at all others", f"{self}: all started again"


class Series:
    """The results of one launcher with so many agents."""

    def __init__(self, results: Results, launcher: str, agents: int) -> None:
        self._results, self._row = results, f"{agents} agents: {launcher}"

    def add(self, event: Event, happened_ns: int, after: Aftermath) -> None:
        """Take one repeat."""
        for column, at_ns in zip(event.columns, (after.terms[-1], after.starts[-1]), strict=True):
            self._results.add(TABLE, self._row, column, "ms", (at_ns - happened_ns) / 1e6)


class Harm:
    """Injects one kind of failure after the other into a fleet, and repairs it."""

    def __init__(self, fleet: OurFleet, series: Series, chance: random.Random) -> None:
        self.fleet, self.series, self.chance = fleet, series, chance

    def settle(self) -> None:
        time.sleep(self.chance.uniform(*SETTLE_S))

    def kill_worker(self) -> None:
        self.settle()
        victim = self.chance.choice(sorted(self.fleet.workers))
        others = self.fleet.workers.keys() - {victim}
        happened_ns = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        after = self.await_aftermath(others, self.fleet.size)
        self.series.add(Event.WORKER_KILLED, happened_ns, after)

    def replace_agent(self) -> None:
        """Kill an agent; when its peers run again without it, start another one."""
        self.fleet.add(self.kill_agent())
        self.await_whole()

    def kill_agent(self) -> str:
        """Kill an agent, and wait until its peers run again; return its name."""
        self.settle()
        worker, agent = self.choose_agent()
        others = self.fleet.workers.keys() - {worker}
        pidfd = os.pidfd_open(worker)
        happened_ns = time.monotonic_ns()
        name = self.fleet.kill_agent(agent)
        after = self.await_aftermath(others, self.fleet.size - 1)
        self.series.add(Event.AGENT_KILLED, happened_ns, after)
        end_worker(pidfd)
        return name

    def choose_agent(self) -> tuple[int, int]:
        """Return a worker and its agent."""
        worker = self.chance.choice(sorted(self.fleet.workers))
        return worker, self.fleet.agent_of(worker)

    def await_aftermath(self, others: Collection[int], world_size: int) -> Aftermath:
        after = self.fleet.observe(others, world_size)
        if not after.starts:
            raise MeasurementFailed("no worker was stopped after the failure")
        return after

    def await_whole(self) -> None:
        """Wait until the job has all of its nodes again."""
        if not self.fleet.await_round(self.fleet.size).starts:
            raise MeasurementFailed("the job does not run with all of its nodes")


def measure_ours(results: Results, size: int, repeats: int, chance: random.Random) -> None:
    with Trial() as trial, closing(OurFleet(trial, size)) as fleet:
        fleet.start()
        harm = Harm(fleet, Series(results, "Rallypoint", size), chance)
        for once in (harm.kill_worker, harm.replace_agent):
            for _ in range(repeats):
                once()


def measure_floor(results: Results, size: int, repeats: int) -> None:
    """Start N workers, then signal them: no launcher on one machine can be faster."""
    series = Series(results, "a bare loop", size)
    with Trial() as trial, closing(Stamps(trial.folder)) as stamps:
        for _ in range(repeats):
            begun_ns = time.monotonic_ns()
            pids = [
                os.posix_spawn(
                    stamps.command[0],
                    stamps.command,
                    {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size)},
                    setsid=True,  # as launchers do: the scheduler shares time by session
                )
                for rank in range(size)
            ]
            try:
                starts = _take(stamps, size)
                time.sleep(SETTLE_S[0])
                signalled_ns = time.monotonic_ns()
                for pid in pids:
                    os.kill(pid, signal.SIGTERM)
                terms = _take(stamps, size)
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)  # not reaped yet: the number is still its own
                    os.waitpid(pid, 0)
            # The workers start before they are signalled here: give the starts the same zero.
            starts = [at_ns - begun_ns + signalled_ns for at_ns in starts]
            series.add(Event.WORKER_KILLED, signalled_ns, Aftermath(terms, starts))


def _take(stamps: Stamps, count: int) -> list[int]:
    """Return when the next `count` stamps were made, in ns, sorted."""
    found: list[int] = []
    for stamp in stamps.until(time.monotonic() + WAIT_LIMIT_S):
        found.append(stamp.clock_ns)
        if len(found) == count:
            return sorted(found)
    raise MeasurementFailed(f"{len(found)} of {count} bare workers came")


def sizes(text: str) -> list[int]:
    """Parse numbers of agents, each 2 or more: a failure has to reach another agent."""
    found = [int(part) for part in text.split(",")]
    if not all(2 <= size <= 128 for size in found):
        raise argparse.ArgumentTypeError("every number must be 2 to 128")
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how failures are detected.")
    parser.add_argument("--agents", type=sizes, default=[2, 16, 64], metavar="N,…")
    parser.add_argument(
        "--repeats", type=int, default=REPEATS_MIN, help=f"at least {REPEATS_MIN} for a claim"
    )
    parser.add_argument("--seed", type=int, default=1, help="chooses victims and pauses")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples here")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    return arguments


def list_parts(arguments: argparse.Namespace, results: Results) -> list[Callable[[], None]]:
    """Return the parts of the measurement."""
    chance, repeats = random.Random(arguments.seed), arguments.repeats
    parts: list[Callable[[], None]] = []
    for size in arguments.agents:
        parts.append(partial(measure_floor, results, size, repeats))
        parts.append(partial(measure_ours, results, size, repeats, chance))
    return parts


def main() -> int:
    arguments = parse_arguments()
    # A plain SIGTERM would end this process and leave the launchers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results = Results(arguments.json)
    has_failed = False
    for part in list_parts(arguments, results):
        try:
            part()
        except MeasurementFailed as error:  # the others are measured all the same
            has_failed = True
            notes = getattr(error, "__notes__", [])
            print(f"measurement failed: {error}", *notes, sep="\n", file=sys.stderr)
        results.write()
    print(render_results(results))
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
