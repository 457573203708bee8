"""Ranks, places and waits in words, for lines that a person reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rallypoint.base.ranges import join_ranges, to_ranges
from rallypoint.base.tracebacks import describe_place
from rallypoint.server.core.evidence.stacks import main_stack
from rallypoint.server.core.evidence.waits import LABEL_CHARS_MAX, Wait, name_operation
from rallypoint.server.core.model.evidence import FindingKind, RankEvidence

SPANS_MAX = 6
"""Ranges of ranks in a line; the finding itself has more."""
CAMPS_MAX = 3
"""Operations, sizes or collectives in a line."""
NETWORK = "the network or a device is the likelier cause"
"""What it means that no rank is set apart."""


def count_ranks(count: int) -> str:
    """Return "1 rank" or "63 ranks"."""
    return "1 rank" if count == 1 else f"{count} ranks"


def name_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3" or "12 ranks (0-3,8-15)"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"{len(ranks)} ranks ({join_spans(ranks)})"


def join_spans(ranks: Iterable[int]) -> str:
    """Return some ranks as ranges, such as "0-3,8-15", at most SPANS_MAX of them."""
    spans = to_ranges(ranks)
    return join_ranges(spans[:SPANS_MAX]) + (",…" if len(spans) > SPANS_MAX else "")


def describe_where(evidence: Mapping[int, RankEvidence], ranks: Sequence[int]) -> str:
    """Return "; it is in train.py:88 load_batch", or "" if the ranks do not share a stack."""
    stacks = {main_stack(evidence[rank]) for rank in ranks if rank in evidence}
    place = describe_place(stacks.pop()) if len(stacks) == 1 else ""
    if not place:
        return ""
    return f"; it is in {place}" if len(ranks) == 1 else f"; they are in {place}"


def describe_behind(wait: Wait, ranks: Sequence[int]) -> str:
    """Return which collective some ranks have not entered."""
    have = "has" if len(ranks) == 1 else "have"
    waiting = _agree(len(wait.ranks), "waits", "wait")
    return f"{name_ranks(ranks)} {have} not entered {wait.describe()}, in which {waiting}"


def describe_outrun(wait: Wait, ranks: Sequence[int]) -> str:
    """Return which collective some ranks are still in although others have completed it."""
    are = "is" if len(ranks) == 1 else "are"
    completed = _agree(wait.completed_by, "has completed", "have completed")
    return f"{name_ranks(ranks)} {are} still in {wait.describe()}, which {completed}: {NETWORK}"


def describe_absent(ranks: Sequence[int], timed_out: int) -> str:
    """Return that some ranks are in no collective, and that one has timed out for the others."""
    did = f"{name_ranks(ranks)} did not come to the collective"
    return f"{did} that timed out for {count_ranks(timed_out)}"


def describe_awaited(wait: Wait | None, ranks: Sequence[int]) -> str:
    """Return "; 63 ranks wait for it in all_reduce number 17 of the default group", or ""."""
    if wait is None:
        return ""
    waiting = _agree(len(wait.ranks), "waits", "wait")
    return f"; {waiting} for {'it' if len(ranks) == 1 else 'them'} in {wait.describe()}"


def describe_intruder(own: Wait, others: Wait, rank: int) -> str:
    """Return that a rank waits in a collective while the others wait for it in another one."""
    waiting = _agree(len(others.ranks), "waits", "wait")
    return f"rank {rank} waits in {own.describe()}, while {waiting} for it in {others.describe()}"


def describe_cycle(waits: Sequence[Wait], ranks: Sequence[int]) -> str:
    """Return that ranks wait for each other in different collectives."""
    named = ", ".join(wait.describe() for wait in waits[:CAMPS_MAX])
    more = ", …" if len(waits) > CAMPS_MAX else ""
    return f"{name_ranks(ranks)} wait for each other in different collectives: {named}{more}"


def describe_mismatch(wait: Wait) -> str:
    """Return what ranks have entered as the same number of a group."""
    mismatch = wait.mismatch
    assert mismatch is not None
    is_other = mismatch.kind is FindingKind.OTHER_COLLECTIVE
    camps = [
        (name_operation(what) if is_other else what[:LABEL_CHARS_MAX] or "unknown sizes", ranks)
        for what, ranks in mismatch.camps
    ]
    number = f"number {wait.number} of {wait.label}"
    if mismatch.is_tie:
        named = "; ".join(f"{what} by {join_spans(ranks)}" for what, ranks in camps[:CAMPS_MAX])
        differ = "different operations" if is_other else "different sizes"
        return f"{name_ranks(mismatch.ranks)} have entered {differ} as {number}: {named}"
    most, apart = camps[0], name_ranks(mismatch.ranks)
    have = "has" if len(mismatch.ranks) == 1 else "have"
    what = camps[1][0] if len(camps) == 2 else ("other operations" if is_other else "other sizes")
    entered = _agree(len(most[1]), "has entered", "have entered")
    if is_other:
        return f"{apart} {have} entered {what} as {number}, where {entered} {most[0]}"
    return f"{apart} {have} entered {wait.describe()} with {what}, where {entered} {most[0]}"


def _agree(count: int, one: str, many: str) -> str:
    return f"{count_ranks(count)} {one if count == 1 else many}"
