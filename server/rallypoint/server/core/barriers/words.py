"""The participants of barriers in words."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.server.core.model.barrier import Expected, Participant, ParticipantKind

SHOWN_MAX = 8
"""Participants that a sentence names."""


def describe_participants(participants: Sequence[Participant], count: int) -> str:
    """Return participants for people: "ranks 3, 4, node b and 7 more".

    Args:
        participants: in order, at least the first SHOWN_MAX.
        count: how many there are.
    """
    ranks = [str(one.rank) for one in participants if one.kind is ParticipantKind.RANK]
    others = [describe(one) for one in participants if one.kind is not ParticipantKind.RANK]
    shown = [*ranks, *others][:SHOWN_MAX]
    noun = "" if not ranks else "rank " if len(shown) == 1 else "ranks "
    more = count - len(shown)
    if not shown:
        return f"{more} more"
    return noun + ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def describe(participant: Participant) -> str:
    """Return a participant for people: "rank 3", "node a", "loader"."""
    match participant.kind:
        case ParticipantKind.RANK:
            return f"rank {participant.rank}"
        case ParticipantKind.NODE:
            return f"node {participant.name}"
        case ParticipantKind.NAME:
            return participant.name


def describe_expected(expected: Expected) -> str:
    """Return who is expected, for people: "all 8 ranks", "3 participants", "rank 0, rank 4"."""
    if expected.all_of is not None:
        noun = "ranks" if expected.all_of is ParticipantKind.RANK else "nodes"
        return f"all {expected.count} {noun}"
    if not expected.participants:
        return f"{expected.count} participants"
    shown = ", ".join(describe(one) for one in expected.participants[:SHOWN_MAX])
    more = len(expected.participants) - SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown
