"""Which rows of the cores' tables the seeds reach: a row that no seed reaches is not tested.

`EXPECTED` is made from the enums and inputs of the cores themselves: a new refusal, reason, stage
or input is a new row without a line here, and `make simulate` names it until some seed takes it.
What else a new feature has to add:

* a fault: a member of `Fault`, a case in `chaos.py`, and, if it has rates, fields in `Faults`; or a
  member of `DiskFault`, and a case in `durable/writes.py`;
* a feature of jobs or nodes: a member of `Feature`, and its use in `scenario.py`;
* a rule: a `Checker` in one of the lists that `Safety` collects, and a planted bug that shows that
  it bites;
* a row that cannot be taken: an entry in `UNREACHABLE`, with its reason.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import get_args

from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.core.held_round import NEXT_STAGES, Stage
from rallypoint.agent.core.state import AgentState
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages.effects import JobChanged, Send
from rallypoint.server.core.messages.inputs import (
    Examined,
    Hello,
    Input,
    JobBroken,
    Request,
    Stalled,
    TimePassed,
)
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.desired import Desired
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.verdict import Consequence, Verdict, VerdictCause
from rallypoint.server.core.rounds.phases import TRANSITIONS
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import State
from rallypoint.server.core.step import Transition
from sim.seeds.faults import DiskFault
from support.core.decisions import Record, RoundSealed, RoundSettled, RoundStopped, RunClosed

Row = tuple[str, str]
"""A table and one of its rows."""

NO_ROUND = "no round"
PHASES = ("none", *(phase.value for phase in Phase))
STAGES = (NO_ROUND, *(stage.value for stage in Stage))
INPUTS = tuple(kind.__name__ for kind in get_args(Input))
AGENT_INPUTS = tuple(kind.__name__ for kind in get_args(agent_inputs.Input))


def _edges(table: str, *edges: tuple[str, str]) -> Iterator[Row]:
    return ((table, f"{before} -> {after}") for before, after in edges)


def _rows(table: str, kinds: Iterable[Enum]) -> Iterator[Row]:
    return ((table, str(kind.value)) for kind in kinds)


EVERY: tuple[Row, ...] = (
    *_edges(
        "phase",
        *((before.value, after.value) for (before, _), after in TRANSITIONS.items()),
        ("none", "forming"),  # a job's first run, and below a later one
        ("closed", "forming"),
        ("running", "forming"),  # several transitions in one step
        ("running", "running"),
        ("stopping", "running"),
    ),
    *(
        ("stage", f"{before.value} -> {after.value}")
        for before, following in NEXT_STAGES.items()
        for after in following
    ),
    *(
        ("event", name)
        for name in (
            "round_adopted",
            "round_found_incomplete",
            "round_started",
            "round_progressed",
            "node_resumed",
            "drain_started",
            "node_quarantined",
            "quarantine_ended",
            "node_cordoned",
            "node_uncordoned",
            "fence_enforced",
            "culprit_awaited",
            "hang_suspected",
            "hang_ended",
            "barrier released",
            "barrier listed",
            "keys written",
            "change watched",
            "watch compacted",
            "job_created",
            "job_updated",
            "restart_requested",
            "operation repeated",
            "coordinator restored",
        )
    ),
    *(("job", f"{phase} x {name}") for phase in PHASES for name in INPUTS),
    *(("agent", f"{stage} x {name}") for stage in STAGES for name in AGENT_INPUTS),
    *(("desired", kind.__name__) for kind in get_args(Desired)),
    *(("expired", kind.name.lower()) for kind in DeadlineKind),
    *_rows("began", RoundReason),
    *_rows("stopped", RoundReason),
    *_rows("settled", RoundReason),
    *_rows("consequence", Consequence),
    *_rows("verdict", VerdictCause),
    *_rows("wait", WaitKind),
    *_rows("outcome", Outcome),
    *_rows("refusal", RefusalKind),
    *_rows("disk", DiskFault),
    *(("record", kind.__name__) for kind in get_args(JournalRecord)),
    *(("exit code", code) for code in ("0", "1", "2", "75", "93", "94", "143")),
)
"""Every row of every table."""


def _never(why: str, stages: str, names: str) -> dict[Row, str]:
    return {
        ("agent", f"{stage.replace('_', ' ')} x {name}"): why
        for stage in stages.split()
        for name in names.split()
    }


_NOT_A_STOP = "a run that ends so is closed, and its round not stopped first"
UNREACHABLE: dict[Row, str] = {
    ("began", "unknown"): "the wire's zero",
    ("stopped", "unknown"): "the wire's zero",
    ("settled", "unknown"): "the wire's zero",
    ("stopped", "first"): "a reason to begin, not to stop",
    ("settled", "first"): "a reason to begin, not to stop",
    ("began", "succeeded"): "nothing begins after the end",
    ("began", "closed"): "nothing begins after the end",
    ("stopped", "succeeded"): _NOT_A_STOP,
    ("settled", "succeeded"): _NOT_A_STOP,
    ("stopped", "closed"): _NOT_A_STOP,
    ("settled", "closed"): _NOT_A_STOP,
    ("verdict", "internal"): "needs a broken invariant: that fails the seed",
    ("refusal", "stale epoch"): "an agent reports only after a Welcome, with its epoch",
    ("refusal", "newer epoch"): "an agent has no session but with the coordinator that it follows",
    ("refusal", "foreign round"): "needs another coordinator with a durable journal",
    ("refusal", "not proven"): "an agent has the token of every coordinator that welcomed it",
    ("refusal", "sequence gap"): "an agent skips no report: streams keep their order",
    ("refusal", "token missing"): "every worker has a token",
    ("refusal", "request id reused"): "no two requests have one id",
    ("refusal", "other job"): "every worker has the token of its job",
    ("expired", "forget"): "a day later",
    **{
        ("job", f"{phase} x JobBroken"): "needs a broken invariant: that fails the seed"
        for phase in PHASES
    },
    **{("job", f"{phase} x NewerReport"): "all agents are of this version" for phase in PHASES},
    **{
        ("job", f"{phase.value} x Stalled"): "it is about jobs with failures, and these have none"
        for phase in (Phase.FORMING, Phase.CLOSED)
    },
    **_never(
        "no simulated machine lacks a port, and no agent has a planted bug",
        " ".join(stage.replace(" ", "_") for stage in STAGES),
        "PortNotReserved AgentFailed",
    ),
    **_never(
        "a port is asked for when a node is clean, and only then",
        "starting running succeeded failed stopping sweeping blocked",
        "PortReserved",
    ),
    **_never(
        "a sweep is asked for after a stop, and answered once",
        "starting running succeeded failed stopping clean",
        "Swept SweepBlocked",
    ),
    **_never("a sweep is answered once", "no_round blocked", "SweepBlocked"),
    **_never(
        "every worker has been started, or none would run",
        "running succeeded",
        "WorkerStarted WorkerNotStarted",
    ),
    **_never("every worker has ended", "succeeded", "WorkerEnded WorkerRecorded"),
    **_never(
        "an error is found soon, and a sweep is blocked after seconds", "blocked", "WorkerRecorded"
    ),
    **_never(
        "the helper answers in order, and a sweep is blocked after seconds",
        "blocked",
        "WorkerStarted WorkerNotStarted",
    ),
    **_never(
        "a clean node has its port in the same instant",
        "clean",
        " ".join(name for name in AGENT_INPUTS if not name.startswith(("Port", "Swe"))),
    ),
}
"""Rows that no seed can reach, and why."""

EXPECTED: tuple[Row, ...] = tuple(row for row in EVERY if row not in UNREACHABLE)


class Coverage:
    """How often each transition was taken."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def coordinator_stepped(
        self, before: Mapping[JobId, Phase], input: Input, transition: Transition, state: State
    ) -> None:
        """Count what a step of the coordinator did."""
        counts = self.counts
        name = type(input).__name__
        counts["input", name] += 1
        job_id = _subject(input, transition, state)
        counts["job", f"{_name(before.get(job_id))} x {name}"] += 1
        if isinstance(input, TimePassed) and transition.delta.deadlines:
            kind, _ = next(iter(transition.delta.deadlines))  # the one that has expired is dropped
            counts["expired", kind.name.lower()] += 1
        if transition.refusal is not None:
            counts["refusal", transition.refusal.kind.value] += 1
        for effect in transition.effects:
            if isinstance(effect, JobChanged):
                counts["event", effect.reason] += 1
            elif isinstance(effect, Send):
                counts["desired", type(effect.desired).__name__] += 1
        for record in transition.records:
            self._recorded(record, state)
        self._count_phases(before, transition, state)

    def _recorded(self, record: Record, state: State) -> None:
        counts = self.counts
        match record:
            case RoundSealed(header=header):
                counts["began", header.reason.value] += 1
            case RoundStopped(job_id=job_id, reason=reason):
                counts["stopped", reason.value] += 1
                self._judged(state.jobs[job_id].verdict)
            case RoundSettled(reason=reason, consequence=consequence):
                counts["settled", reason.value] += 1
                counts["consequence", consequence.value] += 1
            case RunClosed(outcome=outcome, verdict=verdict):
                counts["outcome", outcome.value] += 1
                self._judged(verdict)
                if verdict is not None:
                    counts["consequence", verdict.consequence.value] += 1

    def _judged(self, verdict: Verdict | None) -> None:
        if verdict is not None:
            self.counts["verdict", verdict.cause.value] += 1

    def _count_phases(
        self, before: Mapping[JobId, Phase], transition: Transition, state: State
    ) -> None:
        """Count changes of phase; a round that follows at once changes a phase to itself."""
        sealed = {record.job_id for record in transition.records if isinstance(record, RoundSealed)}
        for job_id in transition.jobs:
            job = state.jobs.get(job_id)
            was, now = before.get(job_id), None if job is None else job.phase
            if was is not now or job_id in sealed:
                self.counts["phase", f"{_name(was)} -> {_name(now)}"] += 1

    def agent_stepped(
        self, before: AgentState, input: agent_inputs.Input, after: AgentState
    ) -> None:
        """Count what a step of an agent did."""
        stage = NO_ROUND if before.held is None else before.held.stage.value
        self.counts["agent", f"{stage} x {type(input).__name__}"] += 1
        if before.held is not None and after.held is not None:
            for edge in _path(before.held.stage, after.held.stage):
                self.counts["stage", edge] += 1

    def wrote(self, records: Iterable[JournalRecord]) -> None:
        """Count what a coordinator has written."""
        for record in records:
            self.counts["record", type(record).__name__] += 1

    def waited(self, kind: WaitKind) -> None:
        """Count what a job waits for."""
        self.counts["wait", kind.value] += 1


def find_missing(counts: Mapping[Row, int]) -> list[Row]:
    """Return the expected rows that were not taken."""
    return [row for row in EXPECTED if not counts.get(row)]


@cache
def _path(before: Stage, after: Stage) -> tuple[str, ...]:
    """Return the edges of the shortest legal way between two stages; a step may enter several."""
    ways: deque[tuple[Stage, ...]] = deque([(before,)])
    while ways:
        way = ways.popleft()
        if way[-1] is after:
            return tuple(f"{one.value} -> {next.value}" for one, next in pairwise(way))
        ways.extend((*way, stage) for stage in NEXT_STAGES[way[-1]])
    raise AssertionError(f"{after.value} cannot follow {before.value}")


def _name(phase: Phase | None) -> str:
    return "none" if phase is None else phase.value


def _subject(input: Input, transition: Transition, state: State) -> JobId:
    """Return the job that an input is about; none for an input of an unknown session."""
    if isinstance(input, Hello):
        return input.identity.job_id
    if isinstance(input, JobBroken | Examined | Request):
        return input.job_id
    if isinstance(input, TimePassed | Stalled):
        return transition.jobs[0] if transition.jobs else JobId("")
    node = state.nodes.get(input.sender.session)
    if node is not None:
        return node.job_id
    return transition.jobs[0] if transition.jobs else JobId("")
