"""What the faults amount to, as a table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from crashes.figures import Totals

SERVED_S_MAX = 5.0
"""How long after a crash another owner may take to answer for a job."""
HANDED_OVER_S_MAX = 1.5
"""The same after SIGTERM."""
KINDS = {"kill": "SIGKILL", "freeze": "SIGSTOP, then SIGCONT", "end": "SIGTERM"}
BARS = {"kill": SERVED_S_MAX, "freeze": SERVED_S_MAX, "end": HANDED_OVER_S_MAX}


@dataclass(slots=True)
class Fault:
    """One fault of a coordinator."""

    kind: str
    aim: str
    done: list[str] = field(default_factory=list)
    """What was done to the jobs."""
    jobs: int = 0
    """Those that it owned."""
    served_s: list[float] = field(default_factory=list)
    """Until another owner answered for each of them."""
    attached_s: list[float] = field(default_factory=list)
    """Until that had all agents of each."""
    away_s: float = 0.0
    """Until it was back, or continued."""
    balanced_s: float = 0.0
    """From there, until it had its share again."""
    disturbed: list[str] = field(default_factory=list)
    """Agents of other owners' jobs that have connected again meanwhile."""


@dataclass(frozen=True, slots=True)
class Store:
    """What was seen in etcd."""

    writes: int
    """To journals."""
    claims: int
    forbidden: int
    """Writes by an owner that was not the owner any more."""


def render(
    faults: Sequence[Fault], totals: Totals, store: Store, jobs: int, outages: Sequence[str]
) -> str:
    """Return the table."""
    ended = [one for model in totals.models for one in model.ended]
    runs = sum(len(model.runs) for model in totals.models)
    done = Counter(text for fault in faults for text in fault.done)
    rows = {
        "jobs, faults": f"{jobs}, {len(faults)}",
        "aimed at": _list(Counter(fault.aim for fault in faults)),
        "done meanwhile": _list(done),
    }
    for kind, name in KINDS.items():
        chosen = [fault for fault in faults if fault.kind == kind]
        served = [seconds for fault in chosen for seconds in fault.served_s]
        attached = [seconds for fault in chosen for seconds in fault.attached_s]
        rows[f"{name}: times, jobs of the owner"] = f"{len(chosen)}, {len(served)}"
        if served:
            rows[f"{name}, until another owner answers: median, p99, max"] = (
                f"{_times(served)}; the bar is {BARS[kind]:g} s"
            )
        if attached:
            rows[f"{name}, until it has all agents: median, p99, max"] = _times(attached)
    balanced = [fault.balanced_s for fault in faults if fault.balanced_s]
    if balanced:
        rows["back until shares are equal: median, p99, max"] = _times(balanced)
    rows |= {
        "agents of other owners' jobs that had to connect again": str(
            sum(len(fault.disturbed) for fault in faults)
        ),
        "workers started": str(totals.starts),
        "workers restarted without an injected failure": str(totals.extra),
        "rounds ended, runs ended": f"{len(ended)}, {runs}",
        "answers that were read": _list(Counter(totals.answers)),
        "answers that were taken back": str(totals.taken_back),
        "writes to journals, claims of shards": f"{store.writes}, {store.claims}",
        "writes of an owner that had lost its shard": str(store.forbidden),
        **{f"etcd: {text.partition(': ')[0]}": text.partition(": ")[2] for text in outages},
        "differences in all": str(totals.differences),
    }
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    return "\n".join(lines)


def _times(values: list[float]) -> str:
    p99 = sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]
    return f"{statistics.median(values):.2f} s, {p99:.2f} s, {max(values):.2f} s"


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
