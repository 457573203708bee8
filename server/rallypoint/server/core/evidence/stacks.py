"""Groups of ranks with equal stacks, and the odd ones.

Two ranks are equal when the whole stacks of their main threads are: function, file and line of
every frame. Their states count too when they say more than a stack does: a stopped process and one
that waits have the same stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rallypoint.base.ranges import to_ranges
from rallypoint.server.core.model.evidence import (
    GROUPS_MAX,
    RANGES_MAX,
    Frame,
    ProcessState,
    RankEvidence,
    RankRange,
    StackGroup,
)

TELLING = frozenset(
    {
        ProcessState.UNINTERRUPTIBLE,
        ProcessState.STOPPED,
        ProcessState.TRACED,
        ProcessState.ENDED,
    }
)
"""States that say more than a stack."""


class Stacks(NamedTuple):
    """All stacks of a round, as groups."""

    groups: tuple[StackGroup, ...]
    """The largest first, then by their lowest rank; at most GROUPS_MAX."""
    groups_total: int
    """How many groups there are, those beyond the limit included."""
    odd: tuple[int, ...]
    """Ranks that differ from more than half of all; ascending."""


def group_stacks(evidence: Mapping[int, RankEvidence]) -> Stacks:
    """Return the groups of ranks with equal stacks.

    Args:
        evidence: of each rank that has answered.
    """
    ranks_of: dict[tuple[tuple[Frame, ...], ProcessState | None], list[int]] = {}
    for rank in sorted(evidence):
        state = evidence[rank].state
        key = main_stack(evidence[rank]), state if state in TELLING else None
        ranks_of.setdefault(key, []).append(rank)
    found = sorted(ranks_of.items(), key=lambda item: (-len(item[1]), item[1][0]))
    has_majority = bool(found) and 2 * len(found[0][1]) > len(evidence)
    groups = tuple(
        StackGroup(
            ranks=bound_ranges(ranks),
            count=len(ranks),
            frames=frames,
            state=_shared_state(evidence, ranks),
            is_odd=has_majority and at > 0,
        )
        for at, ((frames, _), ranks) in enumerate(found[:GROUPS_MAX])
    )
    odd = sorted(rank for _, ranks in found[1:] for rank in ranks) if has_majority else ()
    return Stacks(groups, len(found), tuple(odd))


def _shared_state(evidence: Mapping[int, RankEvidence], ranks: Iterable[int]) -> ProcessState:
    states = {evidence[rank].state for rank in ranks}
    return states.pop() if len(states) == 1 else ProcessState.UNSPECIFIED


def main_stack(evidence: RankEvidence) -> tuple[Frame, ...]:
    """Return the frames of the main thread, the innermost first; () if there are none."""
    return next((thread.frames for thread in evidence.threads if thread.is_main), ())


def bound_ranges(ranks: Iterable[int]) -> tuple[RankRange, ...]:
    """Return the first RANGES_MAX ranges of some ranks."""
    return tuple(RankRange(first, last) for first, last in to_ranges(ranks)[:RANGES_MAX])
