"""Equal failures of many workers as one: 512 times the same traceback is one finding.

Two failures are alike when their workers ended in the same way and their errors differ only in what
differs between any two workers: numbers, addresses, times.
"""

from __future__ import annotations

import re
from dataclasses import replace

from rallypoint.server.core.model import GROUPS_MAX, FailureGroup

RANGES_MAX = 64
"""Ranges of ranks that a group keeps; a rank beyond them is only counted."""
ERROR_CHARS_MAX = 2_048
"""A report of all groups goes to every node: sixteen of them have to stay small."""

_HEX = re.compile(r"0x[0-9a-fA-F]+|\b(?=[a-f]*\d)[0-9a-f]{8,}\b")
_NUMBER = re.compile(r"(, line \d+)|\d+")
_RUN = re.compile(r"\*(?:[-:.,/T]+\*)+")


def normalise(text: str) -> str:
    """Return the text with a star for what differs between workers that fail alike.

    Line numbers of a traceback stay: they tell two errors apart.
    """
    starred = _NUMBER.sub(lambda found: found[1] or "*", _HEX.sub("*", text))
    return _RUN.sub("*", starred)


def fold(
    groups: tuple[FailureGroup, ...], *, rank: int, ended: str, error: str, is_victim: bool
) -> tuple[FailureGroup, ...]:
    """Return the groups with one more failure, in the group of its like or in one of its own.

    Args:
        groups: in order of their first failures.
        rank: the worker's; it has failed once only.
        ended: how it ended, such as "exit code 1".
        error: its error, perhaps with its stack; of a longer one its last ERROR_CHARS_MAX count.
        is_victim: whether the error is what another worker's failure looks like.
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


def add_rank(ranges: tuple[tuple[int, int], ...], rank: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges with `rank`, as few as possible; as they are if there are too many."""
    before = [span for span in ranges if span[1] < rank - 1]
    after = [span for span in ranges if span[0] > rank + 1]
    near = [span for span in ranges if span[1] >= rank - 1 and span[0] <= rank + 1]
    first = min((span[0] for span in near), default=rank)
    last = max((span[1] for span in near), default=rank)
    joined = (*before, (min(first, rank), max(last, rank)), *after)
    return joined if len(joined) <= RANGES_MAX else ranges


def shared_error(group: FailureGroup) -> str:
    """Return the error of a group: of one worker as it said it, of several what they share."""
    return group.error if group.count == 1 else group.key[1]
