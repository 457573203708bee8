"""Folds equal failures of many workers into one group: 512 equal tracebacks are one failure.

Two failures are equal when their workers ended in the same way and their errors differ only in
numbers, addresses and times.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec.structs import replace

from rallypoint.base.ranges import Range, add_to_ranges, is_in_ranges, remove_from_ranges
from rallypoint.server.core.model.verdict import GROUPS_MAX, FailureGroup

RANGES_MAX = 64
"""Ranges of ranks that a group keeps; it only counts the ranks beyond them."""
ERROR_CHARS_MAX = 2_048
"""Characters of a group's error. Every node gets all GROUPS_MAX groups, so they stay small."""
FOLDED_CHARS_MAX = 4 * ERROR_CHARS_MAX
"""Characters of an error that are normalised, from its end: stars for numbers make it shorter."""

# Text, not a compiled pattern: `re` compiles it when it is first used, not at import.
_HEX = r"0x[0-9a-fA-F]+|\b(?=[a-f]*\d)[0-9a-f]{8,}\b"
_NUMBER = r"(, line \d+)|\d+"
_RUN = r"\*(?:[-:.,/T]+\*)+"


class Status(NamedTuple):
    """How a worker ended: at most one of the two is set."""

    exit_code: int | None = None
    signal: int | None = None


def normalise(text: str) -> str:
    """Return the text with a star for every number, address and time.

    Line numbers of a traceback stay: they distinguish errors.
    """
    starred = re.sub(_NUMBER, lambda match: match[1] or "*", re.sub(_HEX, "*", text))
    return re.sub(_RUN, "*", starred)


def fold(
    groups: tuple[FailureGroup, ...],
    *,
    rank: int,
    ended: str,
    status: Status,
    error: str,
    is_victim: bool,
) -> tuple[FailureGroup, ...]:
    """Return the groups with one more failure, in its group or in a new one.

    Args:
        groups: in order of their first failures.
        rank: the worker's global rank; a worker fails once.
        ended: how it ended, such as "exit code 1".
        status: the same as numbers; none for a worker that still runs.
        error: its error, with the stack if there is one; the last ERROR_CHARS_MAX count.
        is_victim: whether the error is typical of a lost peer.
    """
    key = _key(ended, error)
    for at, group in enumerate(groups):
        if group.key == key:
            grown = replace(
                group,
                ranks=add_rank(group.ranks, rank),
                count=group.count + 1,
                exit_code=group.exit_code if group.exit_code == status.exit_code else None,
                signal=group.signal if group.signal == status.signal else None,
            )
            return (*groups[:at], grown, *groups[at + 1 :])
    if len(groups) >= GROUPS_MAX:
        return groups
    first = FailureGroup(key, error[-ERROR_CHARS_MAX:], ((rank, rank),), 1, is_victim, *status)
    return (*groups, first)


def refold(
    groups: tuple[FailureGroup, ...], *, rank: int, ended: str, status: Status, error: str
) -> tuple[FailureGroup, ...]:
    """Return the groups once a worker has ended that had failed while it ran; see `fold`.

    It moves to the group of those that ended alike. A rank that no group shows stays counted where
    it is.
    """
    key = _key(ended, error)
    own = (at for at, group in enumerate(groups) if is_in_ranges(group.ranks, rank))
    at = next(own, None)
    if at is None or groups[at].key == key:
        return groups
    group, others = groups[at], {group.key for group in groups}
    if group.count == 1 and key not in others:
        exit_code, signal = status
        error = error[-ERROR_CHARS_MAX:]
        renamed = replace(group, key=key, error=error, exit_code=exit_code, signal=signal)
        return (*groups[:at], renamed, *groups[at + 1 :])
    ranks = remove_from_ranges(group.ranks, rank)
    if len(ranks) > RANGES_MAX or (group.count > 1 and len(groups) >= GROUPS_MAX):
        return groups
    left = replace(group, ranks=ranks, count=group.count - 1)
    rest = (*groups[:at], *((left,) if left.count else ()), *groups[at + 1 :])
    return fold(rest, rank=rank, ended=ended, status=status, error=error, is_victim=group.is_victim)


def unfold(groups: tuple[FailureGroup, ...], rank: int) -> tuple[FailureGroup, ...] | None:
    """Return the groups without a worker that has not failed after all.

    None: no group shows its rank, or the ranges of the ranks left would be too many.
    """
    own = (at for at, group in enumerate(groups) if is_in_ranges(group.ranks, rank))
    at = next(own, None)
    if at is None:
        return None
    ranks, count = remove_from_ranges(groups[at].ranks, rank), groups[at].count - 1
    if len(ranks) > RANGES_MAX:
        return None
    left = (replace(groups[at], ranks=ranks, count=count),) if count else ()
    return (*groups[:at], *left, *groups[at + 1 :])


def _key(ended: str, error: str) -> tuple[str, str]:
    return ended, normalise(error[-FOLDED_CHARS_MAX:])[-ERROR_CHARS_MAX:]


def add_rank(ranges: tuple[Range, ...], rank: int) -> tuple[Range, ...]:
    """Return the ranges with `rank`; unchanged when there would be more than RANGES_MAX."""
    joined = add_to_ranges(ranges, rank)
    return joined if len(joined) <= RANGES_MAX else ranges


def shared_error(group: FailureGroup) -> str:
    """Return the error of a group: unchanged for one worker, the shared form for several."""
    return group.error if group.count == 1 else group.key[1]
