"""Equal failures form one group, with the ranks that failed."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from rallypoint.server.core.model.verdict import GROUPS_MAX, FailureGroup
from rallypoint.server.core.verdicts.folding import (
    RANGES_MAX,
    Status,
    add_rank,
    fold,
    normalise,
    refold,
    shared_error,
)

Groups = tuple[FailureGroup, ...]


def fold_all(*failures: tuple[int, str, str]) -> Groups:
    groups: Groups = ()
    for rank, ended, error in failures:
        status = Status(1) if ended == DIED else Status()
        groups = fold(groups, rank=rank, ended=ended, status=status, error=error, is_victim=False)
    return groups


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Read error [127.0.0.1]:27022: reset", "Read error [10.12.0.31]:9: reset"),
        ("pid 4711 on cuda:0", "pid 31 on cuda:7"),
        ("at 0x7fca46343a1e", "at 0x1f"),
        ("2026-11-21 11:18:45,123 bad", "2026-11-22 09:00:00,9 bad"),
        ("object a3f9c2d17b is gone", "object 0b9c2d17bf is gone"),
        ("loss 0.25 at 17", "loss 13.0 at 2"),
    ],
)
def test_what_differs_between_equal_failures(one: str, other: str) -> None:
    """Addresses, pids, ranks, times and other numbers do not tell two failures apart."""
    assert normalise(one) == normalise(other)
    assert not any(char.isdigit() for char in normalise(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'a'", "KeyError: 'b'"),
        ('File "x.py", line 31, in f', 'File "x.py", line 32, in f'),
        ('File "x.py", line 12031, in f', 'File "x.py", line 12032, in f'),
        ("deadbeef", "facade"),
    ],
)
def test_what_tells_failures_apart(one: str, other: str) -> None:
    """Words and line numbers tell two failures apart."""
    assert normalise(one) != normalise(other)


def test_equal_failures_are_one_group() -> None:
    """Same exit and error: one group, ordered by its first failure, with ranges of ranks."""
    groups = fold_all(
        *((rank, "exit code 1", f"reset by 10.0.0.{rank}") for rank in (3, 1, 0, 2, 7)),
        (5, "signal 9 (SIGKILL)", ""),
        (6, "exit code 3", "reset by 10.0.0.6"),
    )

    assert [("exit code 1", 5), ("signal 9 (SIGKILL)", 1), ("exit code 3", 1)] == [
        (group.key[0], group.count) for group in groups
    ]
    assert ((0, 3), (7, 7)) == groups[0].ranks
    assert ["reset by *", "", "reset by 10.0.0.6"] == [shared_error(group) for group in groups]


def test_groups_are_bounded() -> None:
    """Beyond the limits nothing is added or removed."""
    kinds = fold_all(*((rank, f"exit code {rank}", "") for rank in range(3 * GROUPS_MAX)))
    holes = fold_all(*((2 * rank, "exit code 1", "") for rank in range(3 * RANGES_MAX)))
    (long,) = fold_all(*((rank, "exit code 1", f"{rank} x" * 9_999) for rank in (1, 222)))

    assert GROUPS_MAX == len(kinds)
    assert (RANGES_MAX, 3 * RANGES_MAX) == (len(holes[0].ranks), holes[0].count)
    assert (2, True) == (long.count, len(long.error) + len(long.key[1]) < 5_000)


def test_ranges_are_as_few_as_possible() -> None:
    """The ranges are those of the set of ranks, in any order of arrival."""
    chance = random.Random(7)
    for _ in range(50):
        ranks = chance.sample(range(40), chance.randint(1, 40))
        ranges: tuple[tuple[int, int], ...] = ()
        for rank in ranks:
            ranges = add_rank(ranges, rank)

        assert sorted(ranks) == [n for first, last in ranges for n in range(first, last + 1)]
        assert all(left[1] + 1 < right[0] for left, right in pairwise(ranges))


RUNS, DIED = "error recorded, still running", "exit code 1"


def test_worker_that_ends_moves_to_those_that_ended_alike() -> None:
    """The counts stay right, and the group of the first failure stays the first one."""
    groups = fold_all((0, RUNS, "x"), (1, RUNS, "x"), (2, DIED, "x"), (3, DIED, "y"))

    groups = refold(groups, rank=1, ended=DIED, status=Status(1), error="x")
    assert [(RUNS, ((0, 0),)), (DIED, ((1, 2),)), (DIED, ((3, 3),))] == [
        (group.key[0], group.ranks) for group in groups
    ]
    groups = refold(groups, rank=0, ended=DIED, status=Status(1), error="x")
    assert [(((0, 2),), 3), (((3, 3),), 1)] == [(group.ranks, group.count) for group in groups]
    groups = refold(groups, rank=3, ended="exit code 7", status=Status(7), error="z 1")
    assert [(DIED, "x"), ("exit code 7", "z 1")] == [(one.key[0], one.error) for one in groups]
    assert [1, 7] == [one.exit_code for one in groups]
    assert groups == refold(groups, rank=3, ended="exit code 7", status=Status(7), error="z 2")
    assert groups == refold(groups, rank=9, ended=DIED, status=Status(1), error="x")


def test_worker_that_ends_is_counted_when_there_is_no_room_for_its_group() -> None:
    """At the limit of groups, it stays in the group where it was."""
    others = [(rank, DIED, chr(97 + rank)) for rank in range(GROUPS_MAX - 1)]
    groups = fold_all(*others, (30, RUNS, "x"), (31, RUNS, "x"))

    assert groups == refold(groups, rank=31, ended=DIED, status=Status(1), error="x")
