"""How fast a failure reaches everybody, and how fast everybody runs again: real agents and workers.

A job of N agents lives through many failures: a worker is killed, an agent is killed, an agent
stands still. What is measured is the time to the moment when SIGTERM has reached the last of the
other workers, and to the first line of the last worker of the next round. Beside it, in the same
run: torchrun with two agents; and the floor, the same workers started and signalled by a bare loop.

    python benchmarks/failures.py --agents 2,16,64 --repeats 20 --json failures.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from fleet import Aftermath, Fleet, OurFleet, TorchrunFleet, end_worker
from launch import describe_machine
from stamps import Stamps
from trial import WAIT_LIMIT_S, MeasurementFailed, Trial

REPEATS_MIN = 20
"""The fewest repeats whose p99 is worth a claim; it is then the greatest of them."""
SETTLE_S = (0.7, 1.7)
"""Pause between two failures, drawn anew: a whole heartbeat wide, so that no phase is preferred."""
TORCHRUN_DEATH_LIMIT_S = 20.0
"""How long torchrun may take to notice an agent's death: its keep-alive gives up after 15 s."""
TORCHRUN_DEATHS_UNNOTICED_MAX = 3
"""After so many deaths that nobody noticed, no more are waited for."""
TORCHRUN_AGENTS = 2


class Event(StrEnum):
    WORKER_KILLED = "worker SIGKILL"
    AGENT_KILLED = "agent SIGKILL"
    AGENT_FROZEN = "agent SIGSTOP"
    FLOOR = "bare loop"


class Launcher(StrEnum):
    RALLYPOINT = "rallypoint"
    TORCHRUN = "torchrun"
    NONE = "none"


LEASE_MS, GRACE_MS, BEYOND_MS = 5_000, 500, 250


def bar_ms(launcher: Launcher, event: Event, agents: int) -> int | None:
    """Return what the p99 of the stop may be at most, or None."""
    if launcher is not Launcher.RALLYPOINT:
        return None
    if event is Event.WORKER_KILLED:
        return 100 if agents <= 16 else 300
    return {Event.AGENT_KILLED: GRACE_MS, Event.AGENT_FROZEN: LEASE_MS}[event] + BEYOND_MS


@dataclass(slots=True)
class Series:
    """All repeats of one event at one size; times in ms after it, one entry per repeat."""

    launcher: Launcher
    event: Event
    agents: int
    first_term: list[float] = field(default_factory=list)
    last_term: list[float] = field(default_factory=list)
    first_start: list[float] = field(default_factory=list)
    last_start: list[float] = field(default_factory=list)
    unnoticed: int = 0
    """Repeats in which nothing happened within the limit."""

    def add(self, happened_ns: int, after: Aftermath) -> None:
        """Take one repeat."""
        if not after.starts:
            self.unnoticed += 1
            return
        moments = (after.terms[0], after.terms[-1], after.starts[0], after.starts[-1])
        lists = (self.first_term, self.last_term, self.first_start, self.last_start)
        for values, moment_ns in zip(lists, moments, strict=True):
            values.append((moment_ns - happened_ns) / 1e6)
        print(
            f"{self.launcher} {self.agents} {self.event}: "
            f"stopped {self.last_term[-1]:.1f} ms, started {self.last_start[-1]:.1f} ms",
            file=sys.stderr,
        )


def percentile(values: list[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of all do not exceed (nearest rank)."""
    return sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]


class Harm:
    """Does one kind of damage after the other to a fleet, and mends it."""

    def __init__(self, fleet: Fleet, launcher: Launcher, chance: random.Random) -> None:
        self.fleet, self.launcher, self.chance = fleet, launcher, chance

    def repeat(self, event: Event, repeats: int) -> Series:
        """Let the event happen again and again."""
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
        """Kill an agent; when its peers run again without it, start another in its place."""
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
        """Stop an agent; when its peers run again without it, let it go on, and come back."""
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
        """Return a worker and its agent, not the one with torchrun's store."""
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
            raise MeasurementFailed("nobody noticed the failure")
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
    """Kill an agent of a job of its own: with a late one, a job of 1:2 nodes may never form."""
    with Trial() as trial, closing(TorchrunFleet(trial, TORCHRUN_AGENTS)) as fleet:
        fleet.start()
        harm = Harm(fleet, Launcher.TORCHRUN, chance)
        harm.settle()
        harm.kill_agent(series)


def measure_floor(size: int, repeats: int) -> Series:
    """Start and then signal N workers, each time: what no launcher can do faster from one place."""
    series = Series(Launcher.NONE, Event.FLOOR, size)
    with Trial() as trial, closing(Stamps(trial.folder)) as stamps:
        for _ in range(repeats):
            begun_ns = time.monotonic_ns()
            pids = [
                os.posix_spawn(
                    stamps.command[0],
                    stamps.command,
                    {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size)},
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


def summarize(series: Series) -> list[dict[str, object]]:
    """Return a row for the stop and a row for the start, in ms."""
    rows = []
    both = (("SIGTERM at all others", series.last_term), ("all started again", series.last_start))
    for what, values in both:
        bar = bar_ms(series.launcher, series.event, series.agents)
        row: dict[str, object] = {
            "launcher": series.launcher.value,
            "agents": series.agents,
            "event": series.event.value,
            "what": what if series.event is not Event.FLOOR else what.partition(" at all")[0],
            "repeats": len(values),
            "unnoticed": series.unnoticed,
            "bar": bar if values is series.last_term else None,
            "samples": values,
        }
        if values:
            row.update(p50=statistics.median(values), p99=percentile(values, 99))
            row.update(min=min(values), max=max(values))
            if row["bar"] is not None and bar is not None:
                row["met"] = percentile(values, 99) <= bar
        rows.append(row)
    return rows


def render_rows(rows: list[dict[str, object]]) -> list[str]:
    lines = ["| agents | launcher | event | until | p50 | p99 | min-max | bar | met |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        figures = ["-", "-", f"not in {row['unnoticed']} of {row['unnoticed']}"]
        if row["samples"]:
            figures = [f"{row['p50']:.1f}", f"{row['p99']:.1f}"]
            figures.append(f"{row['min']:.1f}-{row['max']:.1f}")
        met = "-" if "met" not in row else ("yes" if row["met"] else "no")
        bar = "-" if row["bar"] is None else f"{row['bar']}"
        cells = [str(row[name]) for name in ("agents", "launcher", "event", "what")]
        lines.append(f"| {' | '.join([*cells, *figures, bar, met])} |")
    return lines


def render_stages(all_series: list[Series]) -> list[str]:
    """Return where the time goes: the medians of every stage, in ms after the event."""
    lines = ["| agents | launcher | event | first SIGTERM | last | first start | last |"]
    lines.append("|---|---|---|---|---|---|---|")
    for series in all_series:
        stages = (series.first_term, series.last_term, series.first_start, series.last_start)
        if all(stages):
            cells = [str(series.agents), series.launcher.value, series.event.value]
            cells += [f"{statistics.median(values):.1f}" for values in stages]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def sizes(text: str) -> list[int]:
    """Parse numbers of agents, each 2 or more: somebody has to be told."""
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
