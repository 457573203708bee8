"""Folds equal failures of many workers into one group: 512 equal tracebacks are one failure.

Two failures are equal when their workers ended in the same way and their errors differ only in
numbers, addresses and times.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from rallypoint.base.ranges import Range, add_to_ranges
from rallypoint.server.core.model.verdict import GROUPS_MAX, FailureGroup

RANGES_MAX = 64
"""Ranges of ranks that a group keeps; it only counts the ranks beyond them."""
ERROR_CHARS_MAX = 2_048
"""Characters of a group's error. Every node gets all GROUPS_MAX groups, so they stay small."""

# Text, not a compiled pattern: `re` compiles it when it is first used, not at import.
_HEX = r"0x[0-9a-fA-F]+|\b(?=[a-f]*\d)[0-9a-f]{8,}\b"
_NUMBER = r"(, line \d+)|\d+"
_RUN = r"\*(?:[-:.,/T]+\*)+"


def normalise(text: str) -> str:
    """Return the text with a star for every number, address and time.

    Line numbers of a traceback stay: they distinguish errors.
    """
    starred = re.sub(_NUMBER, lambda match: match[1] or "*", re.sub(_HEX, "*", text))
    return re.sub(_RUN, "*", starred)


def fold(
    groups: tuple[FailureGroup, ...], *, rank: int, ended: str, error: str, is_victim: bool
) -> tuple[FailureGroup, ...]:
    """Return the groups with one more failure, in its group or in a new one.

    Args:
        groups: in order of their first failures.
        rank: the worker's global rank; a worker fails once.
        ended: how it ended, such as "exit code 1".
        error: its error, with the stack if there is one; the last ERROR_CHARS_MAX count.
        is_victim: whether the error is typical of a lost peer.
    """
    key = (ended, normalise(error)[-ERROR_CHARS_MAX:])
    for at, group in enumerate(groups):
        if group.key == key:
            grown = replace(group, ranks=add_rank(group.ranks, rank), count=group.count + 1)
            return (*groups[:at], grown, *groups[at + 1 :])
    if len(groups) >= GROUPS_MAX:
        return groups
    first = FailureGroup(key, error[-ERROR_CHARS_MAX:], ((rank, rank),), 1, is_victim)
    return (*groups, first)


def add_rank(ranges: tuple[Range, ...], rank: int) -> tuple[Range, ...]:
    """Return the ranges with `rank`; unchanged when there would be more than RANGES_MAX."""
    joined = add_to_ranges(ranges, rank)
    return joined if len(joined) <= RANGES_MAX else ranges


def shared_error(group: FailureGroup) -> str:
    """Return the error of a group: unchanged for one worker, the shared form for several."""
    return group.error if group.count == 1 else group.key[1]
