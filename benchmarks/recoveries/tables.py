"""The tables of recovery.py, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from recoveries.cost import BAR, Cost
from recoveries.launchers import Launcher
from recoveries.losses import Loss, Series
from recoveries.memory import Memory
from recoveries.timeline import MARKS

WARM_BAR_S = 0.5
"""From SIGKILL of a worker until all are in main with torch, with warm workers."""
TITLES = {
    Loss.WORKER: "SIGKILL of a worker, 2 nodes with 2 workers each",
    Loss.AGENT: "SIGKILL of an agent and its workers, 2 nodes with 2 workers each and a spare",
}


def render_losses(loss: Loss, found: Sequence[Series]) -> str:
    """Return a row per launcher: seconds from the signal."""
    lines = [
        f"| {TITLES[loss]} | all in main with torch, s | first all-reduce done, s | repeats |",
        "|---|---|---|---|",
    ]
    for series in found:
        if series.loss is not loss:
            continue
        cells = [_spread(series.main_s), _spread(series.reduced_s), str(len(series.main_s))]
        lines.append(f"| {series.launcher} | {' | '.join(cells)} |")
    return "\n".join(lines)


def render_notes(found: Sequence[Series]) -> list[str]:
    """Return what the tables do not show."""
    notes: list[str] = []
    for series in found:
        where = f"{series.launcher}, {series.loss}"
        notes += [f"{where}: {failure}" for failure in series.failures]
        if series.hung:
            notes.append(f"{where}: {series.hung} times the process group did not form in 30 s")
        if series.launcher is Launcher.WARM and series.warm:
            text = ", ".join(map(str, series.warm))
            notes.append(f"{where}: workers of 4 that were standbys, by repeat: {text}")
        if series.launcher is Launcher.WARM and series.loss is Loss.WORKER and series.main_s:
            met = "met" if statistics.median(series.main_s) <= WARM_BAR_S else "missed"
            notes.append(f"{where}: target {WARM_BAR_S} s for all in main: {met}")
    return notes


def render_timelines(found: Sequence[Series]) -> str:
    """Return what the coordinator says about the rounds."""
    lines = [
        f"| the coordinator's view, s | {' | '.join(MARKS)} |",
        "|---" * (len(MARKS) + 1) + "|",
    ]
    for series in found:
        if series.rounds:
            marks = (
                [one.marks_s[name] for one in series.rounds if name in one.marks_s]
                for name in MARKS
            )
            cells = " | ".join(_spread(values) for values in marks)
            lines.append(f"| {series.launcher}, {series.loss} | {cells} |")
    return "\n".join(lines)


def render_memory(found: Sequence[Memory]) -> str:
    """Return a row per number of workers."""
    lines = [
        "| workers | standbys, MB PSS | each | agent and helpers | workers with standbys "
        "| workers alone |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        each = one.standbys_mb / one.workers
        figures = (one.standbys_mb, each, one.agent_mb, one.with_standbys_mb, one.without_mb)
        lines.append(f"| {one.workers} | {' | '.join(f'{value:.0f}' for value in figures)} |")
    return "\n".join(lines)


def render_costs(found: Sequence[Cost]) -> str:
    """Return a row per state of the standbys."""
    lines = [
        "| steps a second, 2 workers | fewer with standbys | pairs | min-max | steps/s |"
        f" processors that standbys use | at most {BAR:g} % |",
        "|---|---|---|---|---|---|---|",
    ]
    for cost in found:
        if not cost.percent:
            lines.append(f"| while {cost.state} | - | 0 | - | - | - | not measured |")
            continue
        low, high = min(cost.percent), max(cost.percent)
        cells = [
            f"{cost.mean:+.2f} % ± {cost.error:.2f}",
            str(len(cost.percent)),
            f"{low:+.2f}-{high:+.2f} %",
            f"{statistics.median(cost.rates):.0f}",
            f"{statistics.mean(cost.used):.3f}",
            _judge(cost),
        ]
        lines.append(f"| while {cost.state} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _judge(cost: Cost) -> str:
    if cost.mean - cost.error > BAR:
        return "no"
    return "yes" if cost.is_known and cost.mean + cost.error <= BAR else "not known: too noisy"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"
