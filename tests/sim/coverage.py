"""Which transitions the seeds have taken: what a simulation never reaches, it does not test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.core.model import AgentState, Stage
from rallypoint.server.core.effects import JobChanged, RoundSettled, RunClosed
from rallypoint.server.core.inputs import Input
from rallypoint.server.core.model import Consequence, JobId, Outcome, Phase, RoundReason
from rallypoint.server.core.state import State
from rallypoint.server.core.step import Transition

EXPECTED: tuple[tuple[str, str], ...] = (
    *(
        ("phase", f"{before} -> {after}")
        for before, after in (
            ("none", "forming"),
            ("forming", "running"),
            ("forming", "closed"),
            ("running", "stopping"),
            ("running", "forming"),
            ("running", "running"),
            ("running", "closed"),
            ("stopping", "forming"),
            ("stopping", "running"),
            ("stopping", "closed"),
            ("closed", "forming"),
        )
    ),
    *(
        ("stage", f"{before.value} -> {after.value}")
        for before, after in (
            (Stage.STARTING, Stage.RUNNING),
            (Stage.STARTING, Stage.FAILED),
            (Stage.STARTING, Stage.STOPPING),
            (Stage.RUNNING, Stage.SUCCEEDED),
            (Stage.RUNNING, Stage.FAILED),
            (Stage.RUNNING, Stage.STOPPING),
            (Stage.SUCCEEDED, Stage.SWEEPING),
            (Stage.FAILED, Stage.STOPPING),
            (Stage.FAILED, Stage.SWEEPING),
            (Stage.STOPPING, Stage.SWEEPING),
            (Stage.SWEEPING, Stage.BLOCKED),
            (Stage.SWEEPING, Stage.CLEAN),
            (Stage.BLOCKED, Stage.CLEAN),
        )
    ),
    *(
        ("event", name)
        for name in (
            "round_adopted",
            "round_incomplete",
            "round_started",
            "node_resumed",
            "node_drains",
            "node_quarantined",
            "quarantine_ended",
            "node_cordoned",
            "node_uncordoned",
        )
    ),
    *(
        ("settled", reason.value)
        for reason in (
            RoundReason.WORKER_FAILED,
            RoundReason.NODE_LOST,
            RoundReason.NODE_LEFT,
            RoundReason.GROWTH,
            RoundReason.START_OVERDUE,
            RoundReason.DRAINED,
        )
    ),
    *(
        ("consequence", consequence.value)
        for consequence in Consequence
        if consequence is not Consequence.UNDECIDED
    ),
    *(("outcome", outcome.value) for outcome in Outcome if outcome is not Outcome.CANCELLED),
    *(
        ("refusal", name)
        for name in (
            "spec mismatch",
            "node name in use",
            "node rank in use",
            "previous run ending",
            "old run",
            "stale connection",
            "unknown session",
        )
    ),
    *(("exit code", code) for code in ("0", "1", "2", "75", "143")),
)


class Coverage:
    """How often each transition was taken."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def coordinator_stepped(
        self, before: Mapping[JobId, Phase], said: Input, transition: Transition, state: State
    ) -> None:
        """Count what a step of the coordinator did."""
        counts = self.counts
        counts["input", type(said).__name__] += 1
        if transition.refusal is not None:
            counts["refusal", transition.refusal.kind.value] += 1
        for effect in transition.effects:
            if isinstance(effect, JobChanged):
                counts["event", effect.reason] += 1
        for record in transition.records:
            if isinstance(record, RoundSettled):
                counts["settled", record.reason.value] += 1
                counts["consequence", record.consequence.value] += 1
            elif isinstance(record, RunClosed):
                counts["outcome", record.outcome.value] += 1
                if record.verdict is not None:
                    counts["consequence", record.verdict.consequence.value] += 1
        for job_id in transition.jobs:
            job = state.jobs.get(job_id)
            was, now = before.get(job_id), None if job is None else job.phase
            if was is not now or any(
                isinstance(effect, JobChanged) and effect.reason == "round_sealed"
                for effect in transition.effects
            ):
                counts["phase", f"{_name(was)} -> {_name(now)}"] += 1

    def agent_stepped(
        self, before: AgentState, said: agent_inputs.Input, after: AgentState
    ) -> None:
        """Count what a step of an agent did."""
        self.counts["agent input", type(said).__name__] += 1
        if before.held is not None and after.held is not None:
            if before.held.stage is not after.held.stage:
                edge = f"{before.held.stage.value} -> {after.held.stage.value}"
                self.counts["stage", edge] += 1

    def missing(self) -> list[tuple[str, str]]:
        """Return the expected transitions that were not taken."""
        return [key for key in EXPECTED if not self.counts[key]]


def _name(phase: Phase | None) -> str:
    return "none" if phase is None else phase.value
