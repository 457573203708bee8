"""Planted bugs in the timelines of rounds."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.agent.core import milestones
from rallypoint.agent.core import step as agent_core
from rallypoint.agent.core.held_round import HeldRound
from rallypoint.agent.core.inputs import MilestoneReached
from rallypoint.agent.core.work import Work
from rallypoint.agent.session import translate
from rallypoint.server.core.model.round import Milestone, Round
from rallypoint.server.core.rounds import progress, timelines
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from sim.seeds.planting import Bug, Patch


def _count_reports() -> list[Patch]:
    """Count the workers of the reports of milestones, however often they come."""
    real = timelines._with_milestone

    def with_milestone(round: Round, ranks: int, milestone: Milestone, at_ms: int) -> Round:
        known = round.imported if milestone is Milestone.IMPORTED else round.process_group
        ranks = ((1 << ranks.bit_count()) - 1) << known.ranks.bit_count()
        return real(round, ranks, milestone, at_ms)

    return [(timelines, "_with_milestone", with_milestone)]


def _move_the_first_step() -> list[Patch]:
    """Take every step for the first one."""
    real = timelines.with_first_step

    def with_first_step(round: Round, ago_ms: int, now_ms: int) -> Round:
        if round.timeline is not None:
            round = replace(round, timeline=replace(round.timeline, first_step_ms=None))
        return real(round, ago_ms, now_ms)

    return [(progress, "with_first_step", with_first_step)]


def _speak_for_all_workers() -> list[Patch]:
    """Let an agent report a milestone when the first of its workers has reached it."""

    def reach(work: Work, reached: MilestoneReached) -> None:
        held = work.state.held
        if held is not None and held.number == reached.round and not held.is_stopping:
            for rank in range(len(held.workers)):
                real(work, replace(reached, local_rank=rank))

    real = milestones.reach
    return [(agent_core, "reach", reach)]


def _forget_what_workers_reached() -> list[Patch]:
    """Say Hello without the milestones of the held round."""
    real = translate._held_message

    def held_message(held: HeldRound, now_ms: int) -> agent_pb2.HeldRound:
        message = real(held, now_ms)
        del message.milestones[:]
        return message

    return [(translate, "_held_message", held_message)]


RULES = frozenset({"TimelinesHold", "invariant"})
TIMELINE_BUGS: dict[str, Bug] = {
    "count reports of milestones": (_count_reports, RULES),
    "move the first step": (_move_the_first_step, RULES),
    "speak for all workers": (_speak_for_all_workers, RULES),
    "forget what workers reached": (_forget_what_workers_reached, RULES),
}
