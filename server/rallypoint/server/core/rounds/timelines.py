"""The timeline of a round: from the failure that made it necessary to its first step.

The end of a round gives the first marks of the next one. A round has a constant number of moments,
which are journalled, and a bit per worker until every worker has reached a milestone, which is not:
agents repeat it to a coordinator that starts again meanwhile.

What agents and workers say of times are ages. They are clamped: nothing happened later than it was
reported, nor before its round was sealed.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.round import (
    PLANNED,
    Assignment,
    Milestone,
    Reached,
    Round,
    Timeline,
)
from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.server.core.verdicts.blame import find_disrupted_ms

WORKERS_MAX = 131_072
"""Workers of a round of which milestones are counted: their bits take 16 KB. Larger rounds have no
such marks."""
_MILESTONES = {
    Milestone.IMPORTED: ("imported", "imported_ms"),
    Milestone.PROCESS_GROUP: ("process_group", "process_group_ms"),
}
"""Where a round has the workers that have reached one, and its timeline when the last has."""


def with_last_exit(round: Round, exits: Iterable[WorkerExit], now_ms: int) -> Round:
    """Return the round after reports of how workers ended; `exits` have their times."""
    ended = (exit.at_ms for exit in exits if exit.has_ended and exit.at_ms is not None)
    latest_ms = max(ended, default=None)
    if latest_ms is None:
        return round
    latest_ms = min(max(latest_ms, round.last_exit_ms or 0, round.sealed_ms), now_ms)
    return replace(round, last_exit_ms=latest_ms)


def ended_timeline(round: Round, now_ms: int) -> Timeline:
    """Return how a round ended, whose last member is clean, lost or given up now."""
    stop_ms = now_ms if round.stop_ms is None else round.stop_ms
    origin_ms, detected_ms = stop_ms, None
    if round.stop_reason not in PLANNED:
        failed = (one.exit.occurred_ms for one in round.failures)
        disrupted_ms = find_disrupted_ms(round)
        known = (*failed, stop_ms if disrupted_ms is None else disrupted_ms)
        origin_ms = max(round.sealed_ms, min(stop_ms, *known))
        first_ms = stop_ms if round.first_failure_ms is None else round.first_failure_ms
        detected_ms = max(origin_ms, min(first_ms, stop_ms))
    stopped_ms = round.last_exit_ms
    return Timeline(
        origin_ms,
        detected_ms=detected_ms,
        told_ms=stop_ms,
        stopped_ms=None if stopped_ms is None else max(origin_ms, stopped_ms),
        swept_ms=now_ms,
    )


def sealed_timeline(job: Job, now_ms: int) -> Timeline:
    """Return the timeline of a round of the job that is sealed now."""
    before = job.ended_round or Timeline(job.opened_ms)
    return replace(before, sealed_ms=now_ms)


def with_start(round: Round, now_ms: int) -> Round:
    """Return the round whose last member has just started."""
    timeline = round.timeline
    if timeline is not None:
        timeline = replace(timeline, started_ms=now_ms)
    return replace(round, started_ms=now_ms, timeline=timeline)


def with_first_step(round: Round, ago_ms: int, now_ms: int) -> Round:
    """Return the round after its first report of progress, or after a later one."""
    timeline = round.timeline
    if timeline is None or timeline.first_step_ms is not None:
        return round
    first_ms = max(round.sealed_ms, now_ms - ago_ms)
    return replace(round, timeline=replace(timeline, first_step_ms=first_ms))


def with_milestones(
    round: Round, place: Assignment, milestones: Iterable[tuple[Milestone, int]], now_ms: int
) -> Round:
    """Return the running round after the agent of a member has reported milestones.

    Args:
        round: the round.
        place: of the member.
        milestones: those that all its workers have reached, each with how long ago, in ms.
        now_ms: journal time.
    """
    if round.header.world_size > WORKERS_MAX or round.timeline is None:
        return round
    ranks = ((1 << place.local_world_size) - 1) << place.first_rank
    for milestone, ago_ms in milestones:
        at_ms = max(round.sealed_ms, now_ms - ago_ms)
        round = _with_milestone(round, ranks, milestone, at_ms)
    return round


def _with_milestone(round: Round, ranks: int, milestone: Milestone, at_ms: int) -> Round:
    """Return the round after workers, a bit per rank, have reached a milestone."""
    timeline = round.timeline
    assert timeline is not None
    whom, when = _MILESTONES[milestone]
    known: Reached = getattr(round, whom)
    if getattr(timeline, when) is not None or known.ranks | ranks == known.ranks:
        return round
    reached = Reached(known.ranks | ranks, max(known.latest_ms, at_ms))
    if reached.ranks.bit_count() == round.header.world_size:
        timeline = replace(timeline, **{when: reached.latest_ms})
        reached = Reached()
    return replace(round, timeline=timeline, **{whom: reached})


def find_marks(timeline: Timeline) -> tuple[tuple[str, int], ...]:
    """Return the marks of a timeline by name, each in ms since its origin; only those known."""
    found = ((name, getattr(timeline, name)) for name in MARKS)
    return tuple((name, at_ms - timeline.origin_ms) for name, at_ms in found if at_ms is not None)


MARKS = tuple(name for name in Timeline.__struct_fields__ if name != "origin_ms")
"""The moments of a timeline, in order."""
_ORDERS = (
    ("origin_ms", "detected_ms", "told_ms", "swept_ms", "sealed_ms", "started_ms"),
    ("origin_ms", "stopped_ms", "swept_ms"),
    ("sealed_ms", "imported_ms"),
    ("sealed_ms", "process_group_ms"),
    ("sealed_ms", "first_step_ms"),
)
"""Moments that follow each other."""


def find_disorder(timeline: Timeline) -> str | None:
    """Return two moments that are in the wrong order, in words; None when there are none."""
    for order in _ORDERS:
        last_name, last_ms = "", 0
        for name in order:
            at_ms: int | None = getattr(timeline, name)
            if at_ms is None:
                continue
            if at_ms < last_ms:
                return f"{name} {at_ms}, {last_name} {last_ms}"
            last_name, last_ms = name, at_ms
    return None
