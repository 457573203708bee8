"""Results of failures.py: percentiles, targets and tables. Times in ms."""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import dataclass, field
from enum import StrEnum

from harness.fleet import Aftermath


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
    """Return the target for the p99 of the stop, or None."""
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
    lines = ["| agents | launcher | event | until | p50 | p99 | min-max | target | met |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        figures = ["-", "-", f"not in {row['unnoticed']} of {row['unnoticed']}"]
        if row["samples"]:
            figures = [f"{row['p50']:.1f}", f"{row['p99']:.1f}"]
            figures.append(f"{row['min']:.1f}-{row['max']:.1f}")
            if row["unnoticed"]:
                figures[-1] += f", and {row['unnoticed']} times not"
        met = "-" if "met" not in row else ("yes" if row["met"] else "no")
        bar = "-" if row["bar"] is None else f"{row['bar']}"
        cells = [str(row[name]) for name in ("agents", "launcher", "event", "what")]
        lines.append(f"| {' | '.join([*cells, *figures, bar, met])} |")
    return lines


def render_stages(all_series: list[Series]) -> list[str]:
    """Return the median of every stage, in ms after the event."""
    lines = ["| agents | launcher | event | first SIGTERM | last | first start | last |"]
    lines.append("|---|---|---|---|---|---|---|")
    for series in all_series:
        stages = (series.first_term, series.last_term, series.first_start, series.last_start)
        if all(stages):
            cells = [str(series.agents), series.launcher.value, series.event.value]
            cells += [f"{statistics.median(values):.1f}" for values in stages]
            lines.append(f"| {' | '.join(cells)} |")
    return lines
