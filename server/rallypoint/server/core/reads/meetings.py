"""Who waits at a barrier, and for whom."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from itertools import islice

from msgspec import Struct

from rallypoint.base.values import describe_in_sentence
from rallypoint.server.core.barriers.ends import expected_participants
from rallypoint.server.core.barriers.words import SHOWN_MAX, describe_participants
from rallypoint.server.core.model.barrier import (
    NAMED_MAX,
    BarrierKey,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.round import Round
from rallypoint.server.core.state.state import State

SHOWN_MS_MIN = 1_000
"""Workers that wait for a shorter time are a part of every training."""


class Meeting(Struct, frozen=True):
    """The barrier at which someone has waited longest."""

    text: str
    """Who waits there, how long, and for whom."""
    arrived: int
    missing: int
    nodes: tuple[str, ...]
    """Those of the missing ranks, and the missing nodes, as far as they are known."""
    age_ms: int
    left_ms: int
    """Until it fails."""


def find_meeting(state: State, job: Job, now_ms: int) -> Meeting | None:
    """Return the barrier of a running job at which someone has waited longest."""
    barriers = state.barriers.get(job.job_id, {}).values()
    opened = [(one.opened_ms, one.key) for one in barriers if one.opened_ms is not None]
    waits = [key for opened_ms, key in sorted(opened) if now_ms - opened_ms >= SHOWN_MS_MIN]
    return _describe(state, job, waits, now_ms) if waits else None


def _describe(state: State, job: Job, waits: Sequence[BarrierKey], now_ms: int) -> Meeting:
    barrier = state.barriers[job.job_id][waits[0]]
    arrivals = state.arrivals[barrier.key]
    count, age_ms = len(arrivals), now_ms - (barrier.opened_ms or 0)
    absent = (one for one in expected_participants(barrier, job) if one not in arrivals)
    missing = tuple(islice(absent, NAMED_MAX))
    left = max(0, barrier.expected.count - count)
    kind = barrier.expected.all_of
    nouns = "participants" if kind is None else f"{kind.name.lower()}s"
    who = f"{count} of {barrier.expected.count} {nouns}"
    if count <= SHOWN_MAX:
        who = describe_participants(nsmallest(SHOWN_MAX, arrivals), count)
    has = "has" if count == 1 else "have"
    name, whom = barrier.key.name, describe_participants(missing, left)
    nodes = _find_nodes(job.round, missing)
    where = f" on {nodes[0]}" if len(nodes) == 1 and _are_ranks(missing, left) else ""
    age = describe_in_sentence(age_ms // 1000 * 1000)
    text = f"{who} {has} waited {age} at barrier {name} for {whom}{where}"
    if len(waits) > 1:
        others = len(waits) - 1
        text += f", and others at {others} more " + ("barrier" if others == 1 else "barriers")
    return Meeting(text, count, left, nodes, age_ms, max(0, barrier.deadline_ms - now_ms))


def _are_ranks(missing: Sequence[Participant], count: int) -> bool:
    return len(missing) == count and all(one.kind is ParticipantKind.RANK for one in missing)


def _find_nodes(round: Round | None, missing: Iterable[Participant]) -> tuple[str, ...]:
    """Return the nodes on which participants are, each once."""
    if round is None:
        return ()
    members, found = round.members, dict[str, None]()
    for one in missing:
        if one.kind is ParticipantKind.NODE:
            found[one.name] = None
        elif one.kind is ParticipantKind.RANK:
            place = bisect_right(members, one.rank, key=lambda of: of.assignment.first_rank)
            found[members[place - 1].name] = None
    return tuple(found)
