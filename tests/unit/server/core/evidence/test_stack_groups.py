"""Ranks with equal stacks are one group, and those that differ from most are odd."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from rallypoint.base.tracebacks import describe_place
from rallypoint.server.core.evidence.stacks import group_stacks
from rallypoint.server.core.model.evidence import (
    GROUPS_MAX,
    RANGES_MAX,
    Frame,
    ProcessState,
    RankEvidence,
    ThreadStack,
)
from support.core.evidence import (
    IN_LOAD,
    IN_STEP,
    MAIN,
    SCRIPT,
    TORCH,
    fold_world,
    make_default,
    make_rank,
)

RUNNING, SLEEPING = ProcessState.RUNNING, ProcessState.SLEEPING
STOPPED = ProcessState.STOPPED


def test_largest_group_is_first() -> None:
    """Then the group of the lowest rank; the ranks of a group are ranges."""
    places = {0: "c", 1: "a", 2: "b", 3: "a", 4: "a", 5: "b"}
    stacks = group_stacks(
        {rank: make_rank(stack=(Frame(name, SCRIPT, 1),)) for rank, name in places.items()}
    )

    assert [("a", 3), ("b", 2), ("c", 1)] == [
        (group.frames[0].function, group.count) for group in stacks.groups
    ]
    assert [(1, 1), (3, 4)] == [(span.first, span.last) for span in stacks.groups[0].ranks]


@pytest.mark.parametrize(
    "other",
    [
        make_rank(stack=(Frame("other", SCRIPT, 88), MAIN)),
        make_rank(stack=(Frame("load_batch", "/home/me/other.py", 88), MAIN)),
        make_rank(stack=(Frame("load_batch", SCRIPT, 89), MAIN)),
        make_rank(stack=(*IN_LOAD, MAIN)),
        make_rank(stack=()),
        make_rank(stack=IN_LOAD, state=STOPPED),
        make_rank(stack=IN_LOAD, state=ProcessState.UNINTERRUPTIBLE),
    ],
)
def test_what_tells_stacks_apart(other: RankEvidence) -> None:
    """Function, file and line of every frame, and a state that says more."""
    stacks = group_stacks({0: make_rank(stack=IN_LOAD), 1: make_rank(stack=IN_LOAD), 2: other})

    assert ([2, 1], (2,)) == ([group.count for group in stacks.groups], stacks.odd)
    assert [False, True] == [group.is_odd for group in stacks.groups]


def test_what_does_not_tell_stacks_apart() -> None:
    """Other threads, and whether a process runs or sleeps; the group then has no state."""
    one, other = make_rank(stack=IN_LOAD, state=RUNNING), make_rank(stack=IN_LOAD, state=SLEEPING)
    other = replace(other, threads=(*other.threads, ThreadStack(False, IN_STEP)), pid=7)
    (group,) = group_stacks({0: one, 1: other, 2: one}).groups

    assert (3, ProcessState.UNSPECIFIED) == (group.count, group.state)
    assert SLEEPING is group_stacks({0: other}).groups[0].state


@pytest.mark.parametrize(("first", "odd"), [(2, ()), (3, (3, 4))])
def test_only_a_majority_makes_others_odd(first: int, odd: tuple[int, ...]) -> None:
    """Most is more than half."""
    ranks = {rank: make_rank(stack=IN_STEP) for rank in range(first)}
    ranks |= {rank: make_rank(stack=IN_LOAD) for rank in range(first, first + 2)}

    assert odd == group_stacks(ranks).odd


def test_groups_and_ranges_are_bounded() -> None:
    """What is beyond the limits is counted."""
    each = group_stacks(
        {rank: make_rank(stack=(Frame("f", SCRIPT, rank),)) for rank in range(2 * GROUPS_MAX)}
    )
    every_second = group_stacks({2 * rank: make_rank() for rank in range(2 * RANGES_MAX)})

    assert (GROUPS_MAX, 2 * GROUPS_MAX) == (len(each.groups), each.groups_total)
    assert (RANGES_MAX, 2 * RANGES_MAX) == (
        len(every_second.groups[0].ranks),
        every_second.groups[0].count,
    )


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ((), ""),
        (IN_STEP, "train.py:90 step"),
        (
            (Frame("wait", "/usr/lib/python3.11/threading.py", 7), *IN_LOAD),
            "train.py:88 load_batch",
        ),
        ((Frame("_run", "<frozen runpy>", 7), MAIN), "train.py:120 main"),
        (
            (Frame("barrier", "/v/lib/python3.11/site-packages/rallypoint/worker/a.py", 7), MAIN),
            "train.py:120 main",
        ),
        (
            (Frame("fit", "/v/lib/python3.11/site-packages/lightning/fit.py", 7), MAIN),
            "fit.py:7 fit",
        ),
        ((Frame("all_reduce", TORCH, 3004),), "distributed_c10d.py:3004 all_reduce"),
        ((Frame("", "train.py", 3),), "train.py:3"),
        ((Frame("f"),), "f"),
    ],
)
def test_place_is_in_the_users_code(frames: tuple[Frame, ...], place: str) -> None:
    """The innermost frame outside torch, Rallypoint and the standard library, if there is one."""
    assert place == describe_place(frames)


def test_very_many_ranks_are_folded_fast() -> None:
    """The time is linear in the ranks: 64k of them cost less than a second on an idle machine."""
    size = 65_536
    default = make_default(size)
    waiting = make_rank(default.at(17))
    given: dict[int, RankEvidence | None] = dict.fromkeys(range(size), waiting)
    given[3] = make_rank(default.at(16, 16), stack=IN_LOAD)
    begin_s = time.process_time()
    evidence = fold_world(given)

    assert 3 == evidence.culprit
    assert time.process_time() - begin_s < 3
