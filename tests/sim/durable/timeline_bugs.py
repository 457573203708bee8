"""Planted bugs in the timelines of rounds."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages.inputs import Progressed
from rallypoint.server.core.model.round import Milestone, Round
from rallypoint.server.core.rounds import progress, timelines
from sim.seeds.planting import Bug, Patch


def _count_reports() -> list[Patch]:
    """Count the reports of milestones, not the workers that send them."""
    real = timelines._with_milestone

    def with_milestone(round: Round, rank: int, milestone: Milestone, at_ms: int) -> Round:
        known = round.imported if milestone is Milestone.IMPORTED else round.process_group
        return real(round, known.ranks.bit_count(), milestone, at_ms)

    return [(timelines, "_with_milestone", with_milestone)]


def _move_the_first_step() -> list[Patch]:
    """Take every step for the first one."""
    real = timelines.with_first_step

    def with_first_step(round: Round, ago_ms: int, now_ms: int) -> Round:
        if round.timeline is not None:
            round = replace(round, timeline=replace(round.timeline, first_step_ms=None))
        return real(round, ago_ms, now_ms)

    return [(progress, "with_first_step", with_first_step)]


def _believe_ages() -> list[Patch]:
    """Believe a worker that a milestone was reached before its round was sealed."""
    real = timelines.with_milestones

    def with_milestones(round: Round, report: Progressed, now_ms: int) -> Round:
        changed = real(replace(round, sealed_ms=0), report, now_ms)
        return replace(changed, sealed_ms=round.sealed_ms)

    return [(progress, "with_milestones", with_milestones)]


RULES = frozenset({"TimelinesHold", "invariant"})
TIMELINE_BUGS: dict[str, Bug] = {
    "count reports of milestones": (_count_reports, RULES),
    "move the first step": (_move_the_first_step, RULES),
    "believe ages of milestones": (_believe_ages, RULES),
}
