"""No false alarms: agents and coordinator are stopped again and again; the job must not notice.

At random instants a random process, an agent or the coordinator, is stopped (SIGSTOP) for up to a
second; several can be stopped at the same time. No round may end, no node may be lost, no restart
may be charged, and the same worker processes must run to the end. At the first mark of any worker
the soak fails with exit code 1.

    python benchmarks/soak.py --agents 32 --seconds 1800
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import signal
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field

from harness.fleet import Fleet
from harness.marks import START
from harness.program import Wrong, make_parser, run
from harness.results import Results
from harness.trial import Trial
from rallypoint.client import Client
from rallypoint.v1 import job_pb2

TABLE = "soak"
GAP_S = 0.25
"""Mean time between two stops."""
STOP_S = 1.0
"""Default of the longest stop: a fifth of a lease."""
PROGRESS_S = 60.0
AFTERWARDS_S = 6.5
"""How long nothing may happen after the last stop: a lease of 5 s and a margin."""
COORDINATOR_SHARE = 0.1
"""Share of the stops that hit the coordinator, whatever the number of agents."""


class FalseDeath(Exception):
    """The job noticed a stop; the text says how."""


@dataclass(slots=True)
class Stops:
    """Which processes are stopped, and until when; times are time.monotonic()."""

    chance: random.Random
    longest_s: float
    agents: list[int]
    coordinator: int
    count: int = 0
    coordinator_count: int = 0
    together_max: int = 0
    """Most processes that were stopped at once."""
    overlong_s: float = 0.0
    """Longest overrun of a stop, because this process was late."""
    _until: list[tuple[float, int]] = field(default_factory=list)

    def stop_one(self) -> None:
        """Stop a random process that is not stopped."""
        stopped = {pid for _, pid in self._until}
        pid = self.chance.choice(self.agents)
        if self.chance.random() < COORDINATOR_SHARE:
            pid = self.coordinator
        length_s = self.chance.uniform(0, self.longest_s)
        if pid in stopped:
            return
        os.kill(pid, signal.SIGSTOP)
        heapq.heappush(self._until, (time.monotonic() + length_s, pid))
        self.count += 1
        self.coordinator_count += pid == self.coordinator
        self.together_max = max(self.together_max, len(self._until))

    def next_s(self) -> float:
        """Return when the next process has to continue; infinity when none is stopped."""
        return self._until[0][0] if self._until else float("inf")

    def release_due(self, now_s: float) -> None:
        """Continue the processes whose time is over."""
        while self._until and self._until[0][0] <= now_s:
            due_s, pid = heapq.heappop(self._until)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            if now_s != float("inf"):
                self.overlong_s = max(self.overlong_s, now_s - due_s)


class Soak:
    """Watches a fleet while some of its processes are stopped."""

    def __init__(self, fleet: Fleet, arguments: argparse.Namespace) -> None:
        self.fleet = fleet
        self.seconds: float = arguments.seconds
        self.stops = Stops(
            random.Random(arguments.seed),
            arguments.longest_stop,
            sorted(fleet.agents),
            fleet.coordinator.popen.pid,
        )
        self.before = self.ask()

    def run(self) -> None:
        """Stop processes for the given time, then check that nothing follows.

        Raises: FalseDeath.
        """
        began_s = time.monotonic()
        end_s, told_s = began_s + self.seconds, began_s + PROGRESS_S
        stop_s = began_s
        try:
            while (now_s := time.monotonic()) < end_s:
                self.stops.release_due(now_s)
                if now_s >= stop_s:
                    self.stops.stop_one()
                    stop_s = now_s + self.stops.chance.expovariate(1 / GAP_S)
                if now_s >= told_s:
                    told_s += PROGRESS_S
                    print(f"{now_s - began_s:.0f} s: {self.count()}", flush=True)
                self.watch(min(stop_s, self.stops.next_s(), told_s, end_s))
        finally:
            self.stops.release_due(float("inf"))
        self.watch(time.monotonic() + AFTERWARDS_S)
        self.compare()

    def watch(self, until_s: float) -> None:
        """Wait until a time; no worker may start or be signalled before."""
        for mark in self.fleet.marks.until(until_s):
            what = "was started" if mark.kind == START else "got SIGTERM"
            raise FalseDeath(f"the worker of rank {mark.rank}, pid {mark.pid}, {what}")

    def compare(self) -> None:
        """Check that the job is the same as before."""
        after = self.ask()
        for what in ("phase", "restart_count"):
            was, came = getattr(self.before, what), getattr(after, what)
            if was != came:
                raise FalseDeath(f"{what} was {was} and is {came}")
        if self.before.round.header != after.round.header:
            raise FalseDeath(f"the round changed:\n{after.round.header}")
        if pids(after) != pids(self.before) or set(pids(after)) != set(self.fleet.workers):
            raise FalseDeath("the workers are not the same processes")
        if not all(node.attached for node in after.nodes):
            raise FalseDeath("a node is not attached")

    def ask(self) -> job_pb2.Job:
        """Return the job as the coordinator shows it."""
        with Client(self.fleet.address) as client:
            return client.get_job(self.fleet.job_id).job

    def count(self) -> dict[str, float]:
        """Return what was done so far, and what the coordinator has noticed of it."""
        stops, events = self.stops, self.fleet.count_events()
        return {
            "stops": stops.count,
            "of the coordinator": stops.coordinator_count,
            "at once at most": stops.together_max,
            "ms overlong": stops.overlong_s * 1000,
            "nodes lost": events["node_lost"],
            "rounds": events["round_sealed"],
            "streams broken": events["node_disconnected"],
            "stalls noticed": events["coordinator_stalled"],
        }


def pids(job: job_pb2.Job) -> list[int]:
    return sorted(worker.pid for node in job.nodes for worker in node.workers)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser("Stop agents and coordinator for moments.")
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument(
        "--longest-stop", type=float, default=STOP_S, metavar="S", help=f"default: {STOP_S:g}"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.agents < 2 or arguments.seconds <= 0 or arguments.longest_stop <= 0:
        parser.error("at least 2 agents, and times above 0")
    return arguments


def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Soak a fleet; return how it noticed a stop."""
    wrong = []
    with Trial() as trial, closing(Fleet(trial, arguments.agents)) as fleet:
        fleet.start()
        soak = Soak(fleet, arguments)
        try:
            soak.run()
        except FalseDeath as death:
            wrong.append(f"FALSE DEATH: {death}")
        for column, count in soak.count().items():
            results.add(TABLE, f"{arguments.agents} agents", column, "", count)
    return wrong


if __name__ == "__main__":
    run(measure, parse_arguments())
