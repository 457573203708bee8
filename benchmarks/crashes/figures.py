"""What the crashes amount to, as a table."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

from crashes.model import Model

ATTACHED_S_MAX = 3.0
"""How long after its start a coordinator may take to have all agents again."""


@dataclass(slots=True)
class Crash:
    """One crash."""

    aim: str
    done: list[str] = field(default_factory=list)
    """What was done to the jobs."""
    phases: list[str] = field(default_factory=list)
    """What the jobs were doing, by the journal."""
    is_in_append: bool = False
    """The journal ends with a batch that the coordinator never knew to be written."""
    away_s: float = 0.0
    listening_s: float = 0.0
    """From the start of the next coordinator."""
    attached_s: list[float] = field(default_factory=list)
    """From there, until each agent was attached. Empty: it was killed before."""
    rss_mb: float = 0.0
    journal_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """What all crashes together amount to."""

    starts: int
    """Workers that have started."""
    extra: int
    """Those of them that had no reason to."""
    epochs: int
    answers: dict[str, int]
    """How many were read, by kind."""
    taken_back: int
    """What readers have found wrong."""
    models: list[Model]
    shift_ms: int
    """How far a time of day that was shown has moved at most."""
    differences: int
    """What was not as it had to be."""


def _share(values: list[float], share: float) -> float:
    """Return a percentile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def render(crashes: list[Crash], totals: Totals) -> str:
    """Return the table."""
    attached = [seconds for crash in crashes for seconds in crash.attached_s]
    last = [max(crash.attached_s) for crash in crashes if crash.attached_s]
    heard = [max(one.attached_s) - one.listening_s for one in crashes if one.attached_s]
    listening = [crash.listening_s for crash in crashes if crash.listening_s]
    phases = Counter(phase for crash in crashes for phase in set(crash.phases))
    aims = Counter(crash.aim for crash in crashes)
    done = Counter(text for crash in crashes for text in crash.done)
    ended = [one for model in totals.models for one in model.ended]
    runs = sum(len(model.runs) for model in totals.models)
    restarts = sum(one.end == "WORKER_FAILED" for one in ended)
    memory = [crash.rss_mb for crash in crashes if crash.rss_mb]
    sizes = [crash.journal_bytes for crash in crashes]
    rows = {
        "crashes": str(len(crashes)),
        "in how many of them a job was, by the journal": _list(phases),
        "aimed at": _list(aims),
        "inside an append, by the journal": str(sum(crash.is_in_append for crash in crashes)),
        "done meanwhile": _list(done),
        "workers started": str(totals.starts),
        "workers restarted without an injected failure": str(totals.extra),
        "rounds ended, runs ended, restarts charged": f"{len(ended)}, {runs}, {restarts}",
        "answers that were read": _list(Counter(totals.answers)),
        "answers that were taken back": str(totals.taken_back),
        "largest shift of a time of day that was shown": f"{totals.shift_ms} ms",
        "epochs": f"{totals.epochs}, each higher than the one before",
        "differences in all": str(totals.differences),
    }
    if attached:
        rows |= {
            "start until it listens, median (max)": _times(listening),
            "start until an agent is attached, median (max)": _times(attached),
            "start until all agents are attached, median (max)": _times(last),
            "p99 of that": f"{_share(last, 0.99):.2f} s; the bar is {ATTACHED_S_MAX:g} s",
            "the same since it listens": f"{_share(heard, 0.99):.2f} s",
            "memory of the coordinator, first and last life": (
                f"{memory[0]:.0f} MB, {memory[-1]:.0f} MB"
            ),
            "files of the journal, median (max)": (
                f"{statistics.median(sizes) / 1e6:.2f} MB ({max(sizes) / 1e6:.2f} MB)"
            ),
        }
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    return "\n".join(lines)


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _times(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s ({max(values):.2f} s)"
