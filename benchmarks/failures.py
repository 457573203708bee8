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
import time
from collections.abc import Callable, Collection
from contextlib import closing
from enum import StrEnum
from functools import partial

from harness.fleet import Aftermath, Fleet, end_worker
from harness.marks import BARE, Marks
from harness.program import Wrong, make_parser, print_failure, run
from harness.results import Results
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


def add(results: Results, row: str, event: Event, happened_ns: int, after: Aftermath) -> None:
    """Add one repeat."""
    for column, at_ns in zip(event.columns, (after.terms[-1], after.starts[-1]), strict=True):
        results.add(TABLE, row, column, "ms", (at_ns - happened_ns) / 1e6)


Add = Callable[[Event, int, Aftermath], None]


class Harm:
    """Injects one kind of failure after the other into a fleet, and repairs it."""

    def __init__(self, fleet: Fleet, add: Add, chance: random.Random) -> None:
        self.fleet, self.add, self.chance = fleet, add, chance

    def settle(self) -> None:
        time.sleep(self.chance.uniform(*SETTLE_S))

    def kill_worker(self) -> None:
        self.settle()
        victim = self.chance.choice(sorted(self.fleet.workers))
        others = self.fleet.workers.keys() - {victim}
        happened_ns = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        after = self.await_aftermath(others, self.fleet.size)
        self.add(Event.WORKER_KILLED, happened_ns, after)

    def replace_agent(self) -> None:
        """Kill an agent; when its peers run again without it, start another one."""
        self.settle()
        worker = self.chance.choice(sorted(self.fleet.workers))
        agent = self.fleet.agent_of(worker)
        others = self.fleet.workers.keys() - {worker}
        pidfd = os.pidfd_open(worker)
        happened_ns = time.monotonic_ns()
        name = self.fleet.kill_agent(agent)
        after = self.await_aftermath(others, self.fleet.size - 1)
        self.add(Event.AGENT_KILLED, happened_ns, after)
        end_worker(pidfd)
        self.fleet.add(name)
        if not self.fleet.await_round(self.fleet.size).starts:
            raise MeasurementFailed("the job does not run with all of its nodes")

    def await_aftermath(self, others: Collection[int], world_size: int) -> Aftermath:
        after = self.fleet.observe(others, world_size)
        if not after.starts:
            raise MeasurementFailed("no worker was stopped after the failure")
        return after


def measure_ours(results: Results, size: int, repeats: int, chance: random.Random) -> None:
    with Trial() as trial, closing(Fleet(trial, size)) as fleet:
        fleet.start()
        harm = Harm(fleet, partial(add, results, f"{size} agents: Rallypoint"), chance)
        for once in (harm.kill_worker, harm.replace_agent):
            for _ in range(repeats):
                once()


def measure_floor(results: Results, size: int, repeats: int) -> None:
    """Start N workers, then signal them: no launcher on one machine can be faster."""
    row = f"{size} agents: a bare loop"
    with Trial() as trial, closing(Marks(trial.folder, BARE)) as marks:
        for _ in range(repeats):
            begun_ns = time.monotonic_ns()
            pids = [
                os.posix_spawn(
                    marks.program[0],
                    marks.program,
                    {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size)},
                    setsid=True,  # as launchers do: the scheduler shares time by session
                )
                for rank in range(size)
            ]
            try:
                starts = _take(marks, size)
                time.sleep(SETTLE_S[0])
                signalled_ns = time.monotonic_ns()
                for pid in pids:
                    os.kill(pid, signal.SIGTERM)
                terms = _take(marks, size)
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)  # not reaped yet: the number is still its own
                    os.waitpid(pid, 0)
            # The workers start before they are signalled here: give the starts the same zero.
            starts = [at_ns - begun_ns + signalled_ns for at_ns in starts]
            add(results, row, Event.WORKER_KILLED, signalled_ns, Aftermath(terms, starts))


def _take(marks: Marks, count: int) -> list[int]:
    """Return when the next `count` marks were made, in ns, sorted."""
    found: list[int] = []
    for mark in marks.until(time.monotonic() + WAIT_LIMIT_S):
        found.append(mark.clock_ns)
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
    parser = make_parser("Measure how failures are detected.")
    parser.add_argument("--agents", type=sizes, default=[2, 16, 64], metavar="N,…")
    parser.add_argument(
        "--repeats", type=int, default=REPEATS_MIN, help=f"at least {REPEATS_MIN} for a claim"
    )
    parser.add_argument("--seed", type=int, default=1, help="chooses victims and pauses")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    return arguments


def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Measure every number of agents; what cannot be measured leaves the others out of it."""
    chance, repeats = random.Random(arguments.seed), arguments.repeats
    wrong = []
    for size in arguments.agents:
        for part in (
            partial(measure_floor, results, size, repeats),
            partial(measure_ours, results, size, repeats, chance),
        ):
            try:
                part()
            except MeasurementFailed as error:
                print_failure(error)
                wrong.append(f"{size} agents: {error}")
            results.write()
    return wrong


if __name__ == "__main__":
    run(measure, parse_arguments())
