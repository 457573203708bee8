"""How fast a failure reaches all workers, and how fast they run again: real agents and workers.

A job of N agents goes through many failures: a worker is killed, an agent is killed, an agent is
stopped. Measured are the time until SIGTERM has reached the last of the other workers, and the time
until the last worker of the next round has started. The same run also measures torchrun with two
agents, and a floor: the same workers, started and signalled by a bare loop.

    python benchmarks/failures.py --agents 2,16,64 --repeats 20 --json failures.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from harness.failure_figures import Event, Launcher, Series, render_rows, render_stages, summarize
from harness.fleet import Aftermath, Fleet, OurFleet, TorchrunFleet, end_worker
from harness.stamps import Stamps
from harness.trial import WAIT_LIMIT_S, MeasurementFailed, Trial
from launch import describe_machine

REPEATS_MIN = 20
"""Fewest repeats for a claim about the p99, which is then the greatest value."""
SETTLE_S = (0.7, 1.7)
"""Range of the random pause between two failures. One heartbeat wide: all phases are as likely."""
TORCHRUN_DEATH_LIMIT_S = 20.0
"""How long torchrun may take to notice a dead agent; its keep-alive gives up after 15 s."""
TORCHRUN_DEATHS_UNNOTICED_MAX = 3
"""After this many unnoticed failures the series ends."""
TORCHRUN_AGENTS = 2


class Harm:
    """Injects one kind of failure after the other into a fleet, and repairs it."""

    def __init__(self, fleet: Fleet, launcher: Launcher, chance: random.Random) -> None:
        self.fleet, self.launcher, self.chance = fleet, launcher, chance

    def repeat(self, event: Event, repeats: int) -> Series:
        """Repeat the event."""
        once = {
            Event.WORKER_KILLED: self.kill_worker,
            Event.AGENT_KILLED: self.replace_agent,
            Event.AGENT_FROZEN: self.freeze_agent,
        }[event]
        series = Series(self.launcher, event, self.fleet.size)
        for _ in range(repeats):
            self.settle()
            once(series)
        return series

    def settle(self) -> None:
        time.sleep(self.chance.uniform(*SETTLE_S))

    def kill_worker(self, series: Series) -> None:
        victim = self.chance.choice(sorted(self.fleet.workers))
        others = self.fleet.workers.keys() - {victim}
        happened_ns = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        series.add(happened_ns, self.await_aftermath(others, self.fleet.size))

    def replace_agent(self, series: Series) -> None:
        """Kill an agent; when its peers run again without it, start another one."""
        self.fleet.add(self.kill_agent(series))
        self.await_whole()

    def kill_agent(self, series: Series) -> str:
        """Kill an agent, and wait until its peers run again; return its name."""
        worker, agent = self.choose_agent()
        others = self.fleet.workers.keys() - {worker}
        pidfd = os.pidfd_open(worker)
        happened_ns = time.monotonic_ns()
        name = self.fleet.kill_agent(agent)
        series.add(happened_ns, self.await_aftermath(others, self.fleet.size - 1))
        end_worker(pidfd)
        return name

    def freeze_agent(self, series: Series) -> None:
        """Stop an agent; when its peers run again without it, continue it until it is back."""
        worker, agent = self.choose_agent()
        others = self.fleet.workers.keys() - {worker}
        happened_ns = time.monotonic_ns()
        os.kill(agent, signal.SIGSTOP)
        try:
            series.add(happened_ns, self.await_aftermath(others, self.fleet.size - 1))
        finally:
            os.kill(agent, signal.SIGCONT)
        self.await_whole()

    def choose_agent(self) -> tuple[int, int]:
        """Return a worker and its agent, but not the agent with torchrun's store."""
        for worker in self.chance.sample(sorted(self.fleet.workers), len(self.fleet.workers)):
            agent = self.fleet.agent_of(worker)
            if not isinstance(self.fleet, TorchrunFleet) or not self.fleet.holds_store(agent):
                return worker, agent
        raise MeasurementFailed("no agent can be harmed")

    def await_aftermath(self, others: Collection[int], world_size: int) -> Aftermath:
        is_ours = self.launcher is Launcher.RALLYPOINT
        limit_s = WAIT_LIMIT_S if is_ours else TORCHRUN_DEATH_LIMIT_S
        after = self.fleet.observe(others, world_size, limit_s)
        if is_ours and not after.starts:
            raise MeasurementFailed("no worker was stopped after the failure")
        return after

    def await_whole(self) -> None:
        if not self.fleet.await_round(self.fleet.size).starts:
            raise MeasurementFailed("the job did not grow again")


def measure_ours(size: int, repeats: int, chance: random.Random) -> Iterator[Series]:
    with Trial() as trial, closing(OurFleet(trial, size)) as fleet:
        fleet.start()
        harm = Harm(fleet, Launcher.RALLYPOINT, chance)
        for event in (Event.WORKER_KILLED, Event.AGENT_KILLED, Event.AGENT_FROZEN):
            yield harm.repeat(event, repeats)


def measure_torchrun(repeats: int, chance: random.Random) -> Iterator[Series]:
    with Trial() as trial, closing(TorchrunFleet(trial, TORCHRUN_AGENTS)) as fleet:
        fleet.start()
        yield Harm(fleet, Launcher.TORCHRUN, chance).repeat(Event.WORKER_KILLED, repeats)
    series = Series(Launcher.TORCHRUN, Event.AGENT_KILLED, TORCHRUN_AGENTS)
    for _ in range(repeats):
        if series.unnoticed < TORCHRUN_DEATHS_UNNOTICED_MAX:
            measure_torchrun_death(series, chance)
    yield series


def measure_torchrun_death(series: Series, chance: random.Random) -> None:
    """Kill an agent of a separate job: with a late agent, a job of 1:2 nodes may never form."""
    with Trial() as trial, closing(TorchrunFleet(trial, TORCHRUN_AGENTS)) as fleet:
        fleet.start()
        harm = Harm(fleet, Launcher.TORCHRUN, chance)
        harm.settle()
        harm.kill_agent(series)


def measure_floor(size: int, repeats: int) -> Series:
    """Start N workers, then signal them: no launcher on one machine can be faster."""
    series = Series(Launcher.NONE, Event.FLOOR, size)
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
                starts = _take(stamps, size, begun_ns)
                time.sleep(SETTLE_S[0])
                signalled_ns = time.monotonic_ns()
                for pid in pids:
                    os.kill(pid, signal.SIGTERM)
                terms = _take(stamps, size, signalled_ns)
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)  # not reaped yet: the number is still its own
                    os.waitpid(pid, 0)
            series.first_term.append(terms[0])
            series.last_term.append(terms[-1])
            series.first_start.append(starts[0])
            series.last_start.append(starts[-1])
    return series


def _take(stamps: Stamps, count: int, since_ns: int) -> list[float]:
    """Return when the next `count` stamps were made, in ms since then, sorted."""
    found: list[float] = []
    for stamp in stamps.until(time.monotonic() + WAIT_LIMIT_S):
        found.append((stamp.clock_ns - since_ns) / 1e6)
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
    parser.add_argument("--no-torchrun", action="store_true", help="leave torchrun out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples here")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    return arguments


def measure(arguments: argparse.Namespace) -> Iterator[Iterator[Series]]:
    """Yield the parts of the measurement; one that fails leaves the others."""
    chance, repeats = random.Random(arguments.seed), arguments.repeats
    if not arguments.no_torchrun:
        yield measure_torchrun(repeats, chance)
    for size in arguments.agents:
        yield iter([measure_floor(size, repeats)])
        yield measure_ours(size, repeats, chance)


def main() -> int:
    arguments = parse_arguments()
    # A plain SIGTERM would end this process and leave the launchers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report: dict[str, object] = {
        **describe_machine(),
        "load before": round(os.getloadavg()[0], 2),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "repeats": arguments.repeats,
        "torchrun has at most": f"{TORCHRUN_DEATH_LIMIT_S:g} s to notice a failure",
        "seed": arguments.seed,
    }
    found: list[Series] = []
    failures: list[MeasurementFailed] = []
    for part in measure(arguments):
        try:
            found.extend(part)  # keeps what came before a failure
        except MeasurementFailed as error:
            failures.append(error)
    rows = [row for series in found for row in summarize(series)]
    lines = [f"- {name}: {value}" for name, value in report.items()]
    lines += ["", "Times in ms. p99 is the nearest rank: with fewer than 100 repeats the greatest."]
    print("\n".join([*lines, "", *render_rows(rows), "", *render_stages(found)]))
    if arguments.json:
        arguments.json.write_text(json.dumps({**report, "rows": rows}, indent=2) + "\n")
    for failure in failures:
        notes = getattr(failure, "__notes__", [])
        print(f"measurement failed: {failure}", *notes, sep="\n", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
