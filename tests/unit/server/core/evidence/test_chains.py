"""Who is waited for is followed over several process groups."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from rallypoint.server.core.model.evidence import FindingKind, ProcessState, RankEvidence
from support.core.evidence import (
    IN_LOAD,
    UNSEEN,
    Given,
    Group,
    fold_world,
    make_default,
    make_group,
    make_rank,
    make_world,
)

COLUMNS, ROWS = 4, 2
SIZE = COLUMNS * ROWS
DEFAULT = make_default(SIZE)
TENSOR = [
    make_group("1", range(row * COLUMNS, (row + 1) * COLUMNS), f"tensor {row}")
    for row in range(ROWS)
]
DATA = [
    make_group("2", range(column, SIZE, COLUMNS), f"data {column}") for column in range(COLUMNS)
]


def make_grid(**where: str) -> Given:
    """Return ranks 0 to 7 in two tensor groups of four, and four data groups of two.

    Args:
        where: for "r3", the kinds of group in which rank 3 waits, such as "tensor" or "data"; the
            other groups are idle, and what is not named is idle in both. Ranks that wait have
            entered number 9, all others number 8.
    """
    given: dict[int, RankEvidence] = {}
    for rank in range(SIZE):
        waits = where.get(f"r{rank}", "").split()
        groups = {"tensor": TENSOR[rank // COLUMNS], "data": DATA[rank % COLUMNS], "all": DEFAULT}
        progress = [
            group.at(9) if kind in waits else group.at(8, 8) for kind, group in groups.items()
        ]
        given[rank] = make_rank(*progress) if waits else make_rank(*progress, stack=IN_LOAD)
    return given


def test_chain_ends_at_the_culprit() -> None:
    """Ranks 4 to 7 wait for 0 to 3, and these for rank 3: only it is behind by itself."""
    waiting = dict.fromkeys(("r0", "r1", "r2"), "tensor") | dict.fromkeys(
        ("r4", "r5", "r6", "r7"), "data"
    )
    evidence = fold_world(make_grid(**waiting))

    assert evidence.culprit == 3
    assert {FindingKind.NOT_ENTERED} == {finding.kind for finding in evidence.findings}
    assert [("1", 9), ("2", 9)] == [(one.group, one.number) for one in evidence.findings]
    assert evidence.text.startswith("rank 3 has not entered all_reduce number 9 of group tensor 0")


def test_state_of_a_rank_on_the_way_does_not_count() -> None:
    """Rank 1 waits in the kernel, but for rank 3: the end of the chain is named."""
    waiting = dict.fromkeys(("r0", "r1", "r2"), "tensor") | dict.fromkeys(
        ("r4", "r5", "r6", "r7"), "data"
    )
    given = dict(make_grid(**waiting))
    blocked = given[1]
    assert blocked is not None
    given[1] = replace(blocked, state=ProcessState.UNINTERRUPTIBLE)

    assert 3 == fold_world(given).culprit


@pytest.mark.parametrize("is_answering", [True, False])
def test_chain_ends_at_what_is_not_known(is_answering: bool) -> None:
    """A rank of which nothing is known ends a chain: those that wait for it are not to blame."""
    waiting = dict.fromkeys(("r0", "r1", "r2"), "tensor") | dict.fromkeys(
        ("r4", "r5", "r6", "r7"), "data"
    )
    silent = make_rank(stack=(), state=ProcessState.STOPPED, gaps=UNSEEN)
    given = make_world(
        SIZE, make_rank(), {**make_grid(**waiting), 3: silent if is_answering else None}
    )
    evidence = fold_world(given)

    kind = FindingKind.STOPPED if is_answering else FindingKind.NO_ANSWER
    assert (3, kind) == (evidence.culprit, evidence.findings[0].kind)


def test_chain_ends_in_a_collective_of_all() -> None:
    """Ranks 4 to 7 wait for 0 to 3, all of which wait in one collective: no rank is behind."""
    waiting = dict.fromkeys(("r0", "r1", "r2", "r3"), "tensor") | dict.fromkeys(
        ("r4", "r5", "r6", "r7"), "data"
    )
    evidence = fold_world(make_grid(**waiting))

    assert evidence.culprit is None
    assert evidence.text == (
        "4 ranks (0-3) wait in all_reduce number 9 of group tensor 0: "
        "the network or a device is the likelier cause"
    )


def test_ring_of_groups_has_no_culprit() -> None:
    """0 waits for 1, 1 for 5, 5 for 4, and 4 for 0: each is as lonely as another one."""
    ring = {"r0": "tensor", "r1": "data", "r5": "tensor", "r4": "data"}
    idle = dict.fromkeys(("r2", "r3"), "tensor") | dict.fromkeys(("r6", "r7"), "tensor")
    evidence = fold_world(make_grid(**ring, **idle))

    assert evidence.culprit is None
    assert evidence.findings[0].kind is FindingKind.OTHER_COLLECTIVE
    assert "wait for each other in different collectives" in evidence.text
    assert [(0, 1), (4, 5)] == [(one.first, one.last) for one in evidence.findings[0].ranks]


def test_two_ranks_in_two_groups_are_a_tie() -> None:
    """One rank waits in each group for the other: none is named."""
    pair, other = make_group("1", (0, 1)), make_group("2", (0, 1))
    evidence = fold_world(
        {
            0: make_rank(pair.at(5), other.at(2, 2)),
            1: make_rank(pair.at(4, 4), other.at(3), stack=IN_LOAD),
        }
    )

    assert evidence.culprit is None
    assert evidence.text == (
        "2 ranks (0-1) wait for each other in different collectives: "
        "all_reduce number 5 of group 1, all_reduce number 3 of group 2"
    )


def test_intruder_is_named_over_several_groups() -> None:
    """Rank 3 alone waits in the group of all, its row for it, and the other row for its row."""
    waiting = dict.fromkeys(("r0", "r1", "r2"), "tensor") | dict.fromkeys(
        ("r4", "r5", "r6", "r7"), "data"
    )
    evidence = fold_world(make_grid(**waiting, r3="all"))

    assert (3, FindingKind.OTHER_COLLECTIVE) == (evidence.culprit, evidence.findings[0].kind)
    assert evidence.text.startswith(
        "rank 3 waits in all_reduce number 9 of the default group, while 3 ranks wait for it in "
        "all_reduce number 9 of group tensor 0"
    )


def test_asynchronous_collectives_are_no_waits_for_those_ahead() -> None:
    """Ranks that have started different numbers of collectives wait for the one that lacks both."""
    started = [DEFAULT.at(entered, 16) for entered in (20, 18, 16, 20, 18, 17, 17, 20)]
    evidence = fold_world({rank: make_rank(one) for rank, one in enumerate(started)})

    assert (2, 17) == (evidence.culprit, evidence.findings[0].number)


def test_groups_with_the_same_name_are_told_apart_by_their_members() -> None:
    """Both rows have a group "1": a rank that is far ahead in one waits for none in the other."""
    given: dict[int, RankEvidence | None] = {
        rank: make_rank(TENSOR[rank // COLUMNS].at(9 if rank < COLUMNS else 90))
        for rank in range(SIZE)
    }
    given[5] = make_rank(TENSOR[1].at(89, 89), stack=IN_LOAD)
    evidence = fold_world(given)

    assert (5, 90) == (evidence.culprit, evidence.findings[0].number)
    assert 1 == len(evidence.findings)


def test_member_beyond_a_cut_list_counts_if_it_lists_the_group() -> None:
    """A long list of members is cut: a rank that lists the group is a member all the same."""
    cut: Group = make_group("1", range(4))
    members: Sequence[int] = range(SIZE)
    given = {rank: make_rank(cut.at(9)) for rank in members} | {
        6: make_rank(cut.at(8, 8), stack=IN_LOAD)
    }

    assert 6 == fold_world(given).culprit
