"""Decides when a round is sealed, and when a running one is stopped to grow.

Pure functions of a job, the tally of its nodes and the time.
"""

from __future__ import annotations

from msgspec import Struct

from rallypoint.server.core.model.job import Job, WaitKind
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.rounds.fences import fenced_until_ms
from rallypoint.server.core.state.tally import Tally

LAST_CALL_FACTOR = 6
"""A wait that every arrival restarts lasts at most this many times its length (6 x 5 s = 30 s)."""
GROW_AFTER_MS_MAX = 600_000


class Seal(Struct, frozen=True):
    """Seal a round now."""


class Wait(Struct, frozen=True):
    """Not yet: the reason, and when it ends by itself (None: only an event ends it)."""

    kind: WaitKind
    until_ms: int | None


class GiveUp(Struct, frozen=True):
    """Too few nodes for too long."""


def decide_forming(job: Job, tally: Tally, now_ms: int) -> Seal | Wait | GiveUp:
    """Decide whether a forming round is sealed, waits, or fails."""
    decision = _decide_unfenced(job, tally, now_ms)
    if isinstance(decision, Seal) and now_ms < fenced_until_ms(job):
        return Wait(WaitKind.FENCE, fenced_until_ms(job))
    return decision


def _decide_unfenced(job: Job, tally: Tally, now_ms: int) -> Seal | Wait | GiveUp:
    """Decide without regard to fences.

    The policy from top to bottom: a pause, all nodes ready, a node reconnecting, too few nodes,
    enough nodes after a failure, the last call of a first round.
    """
    spec = job.spec
    if now_ms < job.backoff_until_ms:
        return Wait(WaitKind.BACKOFF, job.backoff_until_ms)
    if tally.eligible >= spec.max_nodes:
        return Seal()
    if tally.away > 0:
        return Wait(WaitKind.RETURNING, None)
    if tally.placeable(spec.min_nodes) < spec.min_nodes:
        until_ms = job.forming_since_ms + spec.join_timeout_ms
        return GiveUp() if now_ms >= until_ms else Wait(WaitKind.NODES, until_ms)
    if job.next_reason is not RoundReason.FIRST:
        return Seal()
    until_ms = _renewed_until(job.last_arrival_ms, job.first_ready_ms, spec.last_call_ms, now_ms)
    return Seal() if now_ms >= until_ms else Wait(WaitKind.LAST_CALL, until_ms)


def _renewed_until(last_ms: int, first_ms: int | None, length_ms: int, now_ms: int) -> int:
    """Return when a wait ends that every arrival restarts, up to a limit from its start."""
    begun_ms = now_ms if first_ms is None else first_ms
    return min(last_ms + length_ms, begun_ms + LAST_CALL_FACTOR * length_ms)


def growth_due_ms(job: Job, tally: Tally) -> int | None:
    """Return when the running round is stopped to include newcomers, or None for never.

    A round with a draining member is not stopped: the next round includes the newcomers anyway. Nor
    is a round stopped when the next would be no larger, because some members are cordoned.
    """
    round, spec = job.round, job.spec
    assert round is not None
    size = round.header.group_world_size
    if not spec.grow or size >= spec.max_nodes or tally.newcomers == 0 or round.any_finished:
        return None
    if tally.draining or tally.staying + tally.newcomers <= size:
        return None
    if job.first_newcomer_ms is None:
        return None
    settled_ms = _renewed_until(
        job.last_arrival_ms, job.first_newcomer_ms, spec.settle_time_ms, job.first_newcomer_ms
    )
    age_ms = min(spec.grow_after_ms << min(job.counts.growths, 16), GROW_AFTER_MS_MAX)
    # A stop before the end of a fence would only wait for it.
    return max(settled_ms, round.sealed_ms + age_ms, fenced_until_ms(job))
