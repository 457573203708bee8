"""Rounds that end because a collective timed out: some rank did not come to it.

Its peers fail, and show nothing of it. The rank itself still lives, and a stop would hide why it
did not come, so the evidence of the living workers is awaited before.
"""

from __future__ import annotations

from rallypoint.base.ranges import is_in_ranges
from rallypoint.server.core.model.round import Round
from rallypoint.server.core.model.worker import Symptom
from rallypoint.server.core.verdicts.symptoms import is_collective_timeout


def has_timed_out(round: Round) -> bool:
    """Return whether all failures so far are victims, and a collective of at least one timed out.

    A round without peers left has no rank that did not come.
    """
    failures = round.failures
    if round.failure_count == round.header.world_size:
        return False
    if any(failed.symptom is not Symptom.VICTIM for failed in failures):
        return False
    return any(is_collective_timeout(failed.exit) for failed in failures)


def has_failed(round: Round, rank: int) -> bool:
    """Return whether a rank is among the failures of a round."""
    spans = (*(group.ranks for group in round.failure_groups), round.unlisted_ranks)
    return any(is_in_ranges(one, rank) for one in spans)


def is_absent_named(round: Round) -> bool:
    """Return whether evidence names a rank that did not come, and that has not failed itself."""
    hang = round.hang
    if hang is None or hang.rank is None or not hang.name or not has_timed_out(round):
        return False
    return not has_failed(round, hang.rank)


def list_timed_out(round: Round) -> frozenset[int]:
    """Return the ranks that have failed because a collective timed out, if others have not."""
    if not has_timed_out(round):
        return frozenset()
    spans = (*(group.ranks for group in round.failure_groups), round.unlisted_ranks)
    return frozenset(
        rank for one in spans for first, last in one for rank in range(first, last + 1)
    )
