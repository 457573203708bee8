"""The participants of barriers in words."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.server.core.model.barrier import Participant, ParticipantKind

SHOWN_MAX = 8
"""Participants that a sentence names."""


def describe_participants(participants: Sequence[Participant], count: int) -> str:
    """Return participants for people: "ranks 3, 4, node b and 7 more".

    Args:
        participants: in order, at least the first SHOWN_MAX.
        count: how many there are.
    """
    ranks = [str(one.rank) for one in participants if one.kind is ParticipantKind.RANK]
    others = [
        f"node {one.name}" if one.kind is ParticipantKind.NODE else one.name
        for one in participants
        if one.kind is not ParticipantKind.RANK
    ]
    shown = [*ranks, *others][:SHOWN_MAX]
    noun = "" if not ranks else "rank " if len(shown) == 1 else "ranks "
    more = count - len(shown)
    if not shown:
        return f"{more} more"
    return noun + ", ".join(shown) + (f" and {more} more" if more > 0 else "")
