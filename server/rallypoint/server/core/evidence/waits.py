"""Which collectives ranks wait in, and which ranks have not entered them.

A rank that has entered more than it has completed waits in the first collective that it has not
completed. torch's recorder counts per process group, so progress is compared within each group.

* Groups of two ranks are the same when their names and members are.
* A member that does not list a group has entered none of its collectives. That holds only if the
  progress of the rank is known: a stopped process lists nothing because it does not answer.
* torch does not tell the members of every group, and never with gloo. Then the default group has
  all ranks, and another group those that list it. If only one of them has entered the collective
  in which it waits, others are missing, whichever they are.
* Of the collectives of one group, the lowest in which a rank waits decides. If all members have
  entered that one, their records of it are compared: another operation, other sizes.

The number of operations is linear in what the ranks report, and in the members of the groups in
which a rank waits, of which MEMBERS_MAX_PER_RANK limits the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from rallypoint.server.core.model.evidence import (
    Collective,
    FindingKind,
    GroupProgress,
    ProcessState,
    RankEvidence,
    RankRange,
)

MEMBERS_MAX_PER_RANK = 16
"""Groups as large as the world that are examined, or more of smaller ones. A rank waits in few, and
a broken one may list many: groups beyond that are ignored."""
LABEL_CHARS_MAX = 64
"""Characters of a group's name, an operation and sizes in a line for a person."""
DEFAULT_GROUP = "default_pg"
"""How torch describes the default group."""
UNDESCRIBED = "undefined"
"""How torch describes a group without a description."""
UNEVEN = frozenset(
    {
        "all_to_all",
        "all_to_all_single",
        "all_to_all_v_single",
        "all_gather_v",
        "gather",
        "reduce_scatter_v",
        "scatter",
    }
)
"""Operations in which the sizes of ranks may differ.

Source: torch/distributed/flight_recorder/components/types.py, `Op.match`.
"""

_Key = tuple[str, tuple[RankRange, ...]]


class Mismatch(Struct, frozen=True):
    """Ranks that have entered something else as the same number of a group."""

    kind: FindingKind
    """OTHER_COLLECTIVE or OTHER_SIZES."""
    ranks: tuple[int, ...]
    """The minority, ascending; all of them in a tie."""
    is_tie: bool
    camps: tuple[tuple[str, tuple[int, ...]], ...]
    """What ranks have entered, and these ranks; the largest camp first."""


class Wait(Struct, frozen=True):
    """One collective of one process group that ranks wait in."""

    group: str
    """Name of the group."""
    label: str
    """The group in words, such as "the default group"."""
    number: int
    operation: str
    """Of most ranks; empty: not known."""
    ranks: tuple[int, ...]
    """The ranks that wait in it, ascending."""
    behind: tuple[int, ...]
    """The ranks that have not entered it, ascending; without those behind the wait `below`."""
    below: int | None
    """Position of the next lower wait of the group that ranks are behind; they are behind this one
    too. None: there is none."""
    unseen: tuple[int, ...]
    """Members whose progress is not known, if no rank is known to be behind."""
    completed_by: int
    """How many members have completed it."""
    is_alone: bool
    """True when one rank waits in it alone, and nothing is known about the other members."""
    mismatch: Mismatch | None

    @property
    def is_entered_by_all(self) -> bool:
        """True when every member is known to have entered it."""
        is_behind = bool(self.behind) or self.below is not None
        return not (is_behind or self.unseen or self.is_alone)

    @property
    def is_outrun(self) -> bool:
        """True when all members have entered it alike, and some have completed it already."""
        return self.is_entered_by_all and self.completed_by > 0 and self.mismatch is None

    def describe(self) -> str:
        """Return it in words, such as "all_reduce number 17 of the default group"."""
        return f"{self.operation or 'collective'} number {self.number} of {self.label}"


def is_progress_known(evidence: RankEvidence) -> bool:
    """Return whether it is known which collectives a rank has entered."""
    if evidence.groups:
        return True
    return not evidence.gaps and evidence.state is not ProcessState.ENDED


def shows_hang(evidence: Mapping[int, RankEvidence], culprit: int | None) -> bool:
    """Return whether workers wait for something that does not come.

    If they use collectives, and none waits in one, all may compute something that takes long.
    Workers that are not known to use any stood still for longer before they were suspected.

    Args:
        evidence: of each rank that has answered.
        culprit: the rank that it names; None: it names none.
    """
    if culprit is not None or not evidence:
        return culprit is not None
    ranks = evidence.values()
    is_waiting = any(one.awaits_peer or any(map(_is_open, one.groups)) for one in ranks)
    return is_waiting or not any(one.groups for one in ranks)


def _is_open(group: GroupProgress) -> bool:
    return group.completed < group.entered


def find_waits(evidence: Mapping[int, RankEvidence], world_size: int) -> tuple[Wait, ...]:
    """Return all collectives that ranks wait in: group by group, ascending in their numbers.

    Args:
        evidence: of each rank that has answered.
        world_size: number of ranks; those without evidence are unseen.
    """
    known = {rank for rank, one in evidence.items() if is_progress_known(one)}
    waits: list[Wait] = []
    left = MEMBERS_MAX_PER_RANK * world_size
    for (_, ranges), progress in sorted(
        _collect(evidence).items(), key=lambda item: (-len(item[1]), item[0][0], min(item[1]))
    ):
        if not any(one.completed < one.entered for one in progress.values()):
            continue
        members = set(progress)
        if not ranges and any(one.description == DEFAULT_GROUP for one in progress.values()):
            ranges = (RankRange(0, world_size - 1),)
        for first, last in _clamp(ranges, world_size):
            members.update(range(first, min(last, first + left) + 1))
        left -= len(members)
        if left < 0:
            break
        waits.extend(_find_in_group(progress, members, known, len(waits)))
    return tuple(waits)


def _collect(evidence: Mapping[int, RankEvidence]) -> dict[_Key, dict[int, GroupProgress]]:
    """Return the progress of the ranks that list each group."""
    collected: dict[_Key, dict[int, GroupProgress]] = {}
    for rank in sorted(evidence):
        for group in evidence[rank].groups:
            progress = collected.setdefault((group.name, group.members), {})
            before = progress.get(rank)
            if before is None or before.entered < group.entered:
                progress[rank] = group
    return collected


def _clamp(ranges: Sequence[RankRange], world_size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of the ranges that are in the world and after the range before."""
    begin = 0
    for one in ranges:
        first, last = max(begin, one.first), min(one.last, world_size - 1)
        if first <= last:
            begin = last + 1
            yield first, last


def _find_in_group(
    progress: Mapping[int, GroupProgress], members: set[int], known: set[int], base: int
) -> Iterator[Wait]:
    """Yield the waits of one group, ascending in their numbers.

    Args:
        progress: of the ranks that list the group.
        members: all ranks of the group.
        known: ranks whose progress is known, of any group.
        base: position of the first wait that is yielded.
    """
    group = next(iter(progress.values()))
    entered = {rank: 0 for rank in members & known}
    waiting: dict[int, list[int]] = {}
    for rank, one in progress.items():
        entered[rank] = one.entered
        if one.completed < one.entered:
            waiting.setdefault(one.completed + 1, []).append(rank)
    unseen = tuple(sorted(members - entered.keys()))
    slowest = sorted(entered, key=lambda rank: (entered[rank], rank))
    completed = sorted(one.completed for one in progress.values())
    begin, below, passed = 0, None, 0
    for at, number in enumerate(sorted(waiting)):
        end = begin
        while end < len(slowest) and entered[slowest[end]] < number:
            end += 1
        while passed < len(completed) and completed[passed] < number:
            passed += 1
        yield Wait(
            group=group.name,
            label=_label(group),
            number=number,
            operation=_most_common_operation(_records_of(progress, waiting[number], number)),
            ranks=tuple(waiting[number]),
            behind=tuple(sorted(slowest[begin:end])),
            below=below,
            unseen=unseen if end == 0 else (),
            completed_by=len(completed) - passed,
            is_alone=len(members) == 1 and not group.members,
            mismatch=_find_mismatch(_records_of(progress, progress, number)) if at == 0 else None,
        )
        begin = end
        below = base + at if end > 0 else None


def _label(group: GroupProgress) -> str:
    if group.description == DEFAULT_GROUP:
        return "the default group"
    is_described = group.description not in ("", UNDESCRIBED)
    name = group.description if is_described else group.name
    return f"group {name[:LABEL_CHARS_MAX] or 'without a name'}"


def _records_of(
    progress: Mapping[int, GroupProgress], ranks: Iterable[int], number: int
) -> dict[int, Collective]:
    """Return what each rank has recorded as this number, as far as it still has the record."""
    records: dict[int, Collective] = {}
    for rank in ranks:
        one = progress[rank]
        found = next((each for each in one.latest if each.number == number), None)
        if found is not None and one.entered >= number:
            records[rank] = found
    return records


def name_operation(operation: str) -> str:
    """Return an operation without its back end: "all_reduce" for "gloo:all_reduce"."""
    return operation.rpartition(":")[2][:LABEL_CHARS_MAX]


def _most_common_operation(records: Mapping[int, Collective]) -> str:
    camps = _split({rank: name_operation(one.operation) for rank, one in records.items()})
    return camps[0][0] if camps else ""


def _find_mismatch(records: Mapping[int, Collective]) -> Mismatch | None:
    """Return how the records of one number differ, operations before sizes; None: not at all."""
    operations = {rank: one.operation for rank, one in records.items() if one.operation}
    camps = _split(operations)
    if len(camps) > 1:
        return _judge(FindingKind.OTHER_COLLECTIVE, camps)
    if not camps or name_operation(camps[0][0]) in UNEVEN:
        return None
    camps = _split(
        {rank: f"{records[rank].sizes} {records[rank].dtypes}".strip() for rank in operations}
    )
    return _judge(FindingKind.OTHER_SIZES, camps) if len(camps) > 1 else None


def _judge(kind: FindingKind, camps: Sequence[tuple[str, tuple[int, ...]]]) -> Mismatch:
    """Return the mismatch of several camps: the minority is set apart, or all of them in a tie."""
    is_tie = len(camps[0][1]) == len(camps[1][1])
    apart = camps if is_tie else camps[1:]
    ranks = sorted(rank for _, ranks in apart for rank in ranks)
    return Mismatch(kind, tuple(ranks), is_tie, tuple(camps))


def _split(values: Mapping[int, str]) -> list[tuple[str, tuple[int, ...]]]:
    """Return each value with its ranks; the most frequent first, then that of the lowest rank."""
    ranks_of: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks_of.setdefault(value, []).append(rank)
    found = [(value, tuple(ranks)) for value, ranks in ranks_of.items()]
    return sorted(found, key=lambda item: (-len(item[1]), item[1][0]))
