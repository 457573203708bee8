"""Evidence of 64 ranks names the one that the others wait for, or says that there is none."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from rallypoint.server.core.model.evidence import (
    Collective,
    FindingKind,
    GroupProgress,
    ProcessState,
    RankEvidence,
)
from support.core.evidence import (
    IN_LOAD,
    IN_STEP,
    UNSEEN,
    Given,
    fold_world,
    make_default,
    make_group,
    make_rank,
    make_world,
)

SIZE = 64
DEFAULT = make_default(SIZE)
OPEN = make_group("7", (), "tensor")
"""A group whose members torch does not tell."""
OPEN_DEFAULT = make_group("0", (), "default_pg")
WAITING = make_rank(DEFAULT.at(17))
IN_17 = "all_reduce number 17 of the default group"
LOADS = "it is in train.py:88 load_batch"
STEPS = "it is in train.py:90 step"
NETWORK = "the network or a device is the likelier cause"


class Says(NamedTuple):
    """What evidence says."""

    culprit: int | None
    kinds: str
    """Kinds of the findings, the strongest first."""
    text: str


def one_apart(one: RankEvidence | None) -> Given:
    return make_world(SIZE, WAITING, {3: one})


def make_own_barrier(members: range) -> Given:
    """Rank 3 waits in a barrier of some ranks; all others wait in the default group."""
    group = make_group("7", members, "tensor")
    barrier = make_rank(DEFAULT.at(16, 16), group.at(5, operation="gloo:barrier"), stack=IN_LOAD)
    before = make_rank(DEFAULT.at(17), group.at(4, 4))
    return make_world(SIZE, WAITING, {rank: before for rank in members} | {3: barrier})


def past_a_broadcast() -> GroupProgress:
    """Its broadcast number 17 needs no answer, and it waits in number 18."""
    latest = (Collective(18, "gloo:all_reduce"), Collective(17, "gloo:broadcast"))
    return replace(DEFAULT.at(18), latest=latest)


def halves(one: RankEvidence | None, other: RankEvidence | None) -> Given:
    return {rank: one if rank < SIZE // 2 else other for rank in range(SIZE)}


CASES: dict[str, tuple[Given, Says]] = {
    "asleep before the collective": (
        one_apart(make_rank(DEFAULT.at(16, 16), stack=IN_LOAD)),
        Says(
            3,
            "NOT_ENTERED",
            f"rank 3 has not entered {IN_17}, in which 63 ranks wait; {LOADS}",
        ),
    ),
    "in a loop in C, or holding the lock, so that it has no stack": (
        one_apart(make_rank(DEFAULT.at(16, 16), stack=(), state=ProcessState.RUNNING)),
        Says(3, "NOT_ENTERED", f"rank 3 has not entered {IN_17}, in which 63 ranks wait"),
    ),
    "before its first collective": (
        one_apart(make_rank(stack=IN_LOAD)),
        Says(
            3,
            "NOT_ENTERED",
            f"rank 3 has not entered {IN_17}, in which 63 ranks wait; {LOADS}",
        ),
    ),
    "stopped, so that it answers nothing": (
        one_apart(make_rank(stack=(), state=ProcessState.STOPPED, gaps=UNSEEN)),
        Says(3, "STOPPED", f"a signal has stopped rank 3; 63 ranks wait for it in {IN_17}"),
    ),
    "stopped before the collective": (
        one_apart(make_rank(DEFAULT.at(16, 16), stack=IN_LOAD, state=ProcessState.STOPPED)),
        Says(
            3,
            "STOPPED NOT_ENTERED",
            f"a signal has stopped rank 3; 63 ranks wait for it in {IN_17}; {LOADS}",
        ),
    ),
    "stopped inside the collective": (
        one_apart(make_rank(DEFAULT.at(17), state=ProcessState.STOPPED)),
        Says(3, "STOPPED", f"a signal has stopped rank 3; {STEPS}"),
    ),
    "held by a debugger": (
        one_apart(make_rank(DEFAULT.at(16, 16), stack=IN_LOAD, state=ProcessState.TRACED)),
        Says(
            3,
            "STOPPED NOT_ENTERED",
            f"a debugger holds rank 3; 63 ranks wait for it in {IN_17}; {LOADS}",
        ),
    ),
    "blocked in the kernel": (
        one_apart(
            make_rank(
                DEFAULT.at(16, 16),
                stack=IN_LOAD,
                state=ProcessState.UNINTERRUPTIBLE,
                waits_in="nfs_wait",
            )
        ),
        Says(
            3,
            "UNINTERRUPTIBLE NOT_ENTERED",
            "rank 3 waits in the kernel (nfs_wait), where no signal reaches it; "
            f"63 ranks wait for it in {IN_17}; {LOADS}",
        ),
    ),
    "ended": (
        one_apart(make_rank(stack=(), state=ProcessState.ENDED)),
        Says(3, "NO_ANSWER", f"the process of rank 3 has ended; 63 ranks wait for it in {IN_17}"),
    ),
    "in a barrier of the default group": (
        one_apart(make_rank(DEFAULT.at(17, operation="gloo:barrier"), stack=IN_LOAD)),
        Says(
            3,
            "OTHER_COLLECTIVE",
            "rank 3 has entered barrier as number 17 of the default group, where 63 ranks have "
            f"entered all_reduce; {LOADS}",
        ),
    ),
    "past a broadcast that the others have not entered": (
        one_apart(make_rank(past_a_broadcast())),
        Says(
            3,
            "OTHER_COLLECTIVE",
            "rank 3 has entered broadcast as number 17 of the default group, where 63 ranks have "
            f"entered all_reduce; {STEPS}",
        ),
    ),
    "with other sizes": (
        one_apart(make_rank(DEFAULT.at(17, sizes="[[8]]"))),
        Says(
            3,
            "OTHER_SIZES",
            f"rank 3 has entered {IN_17} with [[8]] Float, where 63 ranks have entered [[1024]] "
            f"Float; {STEPS}",
        ),
    ),
    "in a barrier with seven others": (
        make_own_barrier(range(8)),
        Says(
            3,
            "OTHER_COLLECTIVE",
            "rank 3 waits in barrier number 5 of group tensor, while 63 ranks wait for it in "
            f"{IN_17}; {LOADS}",
        ),
    ),
    "in a barrier with one other": (
        make_own_barrier(range(3, 5)),
        Says(
            3,
            "OTHER_COLLECTIVE",
            "rank 3 waits in barrier number 5 of group tensor, while 63 ranks wait for it in "
            f"{IN_17}; {LOADS}",
        ),
    ),
    "in a barrier of a group whose members are not known": (
        one_apart(
            make_rank(DEFAULT.at(16, 16), OPEN.at(1, operation="gloo:barrier"), stack=IN_LOAD)
        ),
        Says(
            3,
            "OTHER_COLLECTIVE",
            "rank 3 waits in barrier number 1 of group tensor, while 63 ranks wait for it in "
            f"{IN_17}; {LOADS}",
        ),
    ),
    "before its first collective, and no members are known": (
        make_world(SIZE, make_rank(OPEN_DEFAULT.at(1)), {3: make_rank(stack=IN_LOAD)}),
        Says(
            3,
            "NOT_ENTERED",
            "rank 3 has not entered all_reduce number 1 of the default group, in which 63 ranks "
            f"wait; {LOADS}",
        ),
    ),
    "packets dropped in groups whose members are not known": (
        halves(make_rank(OPEN.at(9)), make_rank(OPEN.at(9))),
        Says(
            None,
            "",
            "all 64 ranks wait in all_reduce number 9 of group tensor, none in another place: "
            f"{NETWORK}",
        ),
    ),
    "without an answer": (
        one_apart(None),
        Says(3, "NO_ANSWER", f"rank 3 has not answered; 63 ranks wait for it in {IN_17}"),
    ),
    "nothing known of it": (
        one_apart(make_rank(stack=(), gaps=UNSEEN)),
        Says(None, "OTHER_STACK", f"63 ranks (0-2,4-63) wait in {IN_17}, and no rank is set apart"),
    ),
    "in a receive": (
        one_apart(replace(make_rank(DEFAULT.at(16, 16), stack=IN_LOAD), awaits_peer=True)),
        Says(
            None,
            "NOT_ENTERED",
            f"63 ranks (0-2,4-63) wait in {IN_17}, and no rank is set apart",
        ),
    ),
    "without an answer, and another asleep": (
        make_world(SIZE, WAITING, {3: None, 9: make_rank(DEFAULT.at(16, 16), stack=IN_LOAD)}),
        Says(
            9,
            "NOT_ENTERED NO_ANSWER",
            f"rank 9 has not entered {IN_17}, in which 62 ranks wait; {LOADS}; "
            "1 rank has not answered",
        ),
    ),
    "one stopped and one asleep": (
        make_world(
            SIZE,
            WAITING,
            {
                3: make_rank(stack=(), state=ProcessState.STOPPED, gaps=UNSEEN),
                9: make_rank(DEFAULT.at(16, 16), stack=IN_LOAD),
            },
        ),
        Says(
            9,
            "NOT_ENTERED STOPPED",
            f"rank 9 has not entered {IN_17}, in which 62 ranks wait; {LOADS}",
        ),
    ),
    "two asleep": (
        make_world(
            SIZE, WAITING, dict.fromkeys((3, 9), make_rank(DEFAULT.at(16, 16), stack=IN_LOAD))
        ),
        Says(
            None,
            "NOT_ENTERED",
            f"2 ranks (3,9) have not entered {IN_17}, in which 62 ranks wait; "
            "they are in train.py:88 load_batch",
        ),
    ),
    "two without an answer": (
        make_world(SIZE, WAITING, dict.fromkeys((3, 9))),
        Says(
            None,
            "NO_ANSWER",
            f"62 ranks (0-2,4-8,10-63) wait in {IN_17}, and no rank is set apart; "
            "2 ranks have not answered",
        ),
    ),
    "half without an answer": (
        halves(WAITING, None),
        Says(
            None,
            "NO_ANSWER",
            f"32 ranks (0-31) wait in {IN_17}, and no rank is set apart; "
            "32 ranks have not answered",
        ),
    ),
    "packets dropped": (
        halves(WAITING, WAITING),
        Says(None, "", f"all 64 ranks wait in {IN_17}, none in another place: {NETWORK}"),
    ),
    "packets dropped, and one calls it elsewhere": (
        one_apart(make_rank(DEFAULT.at(17), stack=IN_LOAD)),
        Says(None, "OTHER_STACK", f"all 64 ranks wait in {IN_17}: {NETWORK}"),
    ),
    "packets dropped before the last rank had completed": (
        one_apart(make_rank(DEFAULT.at(16))),
        Says(
            None,
            "NOT_ENTERED",
            "rank 3 is still in all_reduce number 16 of the default group, which 63 ranks have "
            f"completed: {NETWORK}",
        ),
    ),
    "half in another operation": (
        halves(WAITING, make_rank(DEFAULT.at(17, operation="gloo:barrier"))),
        Says(
            None,
            "OTHER_COLLECTIVE",
            "64 ranks (0-63) have entered different operations as number 17 of the default group: "
            "all_reduce by 0-31; barrier by 32-63; they are in train.py:90 step",
        ),
    ),
    "half with other sizes": (
        halves(WAITING, make_rank(DEFAULT.at(17, sizes="[[8]]"))),
        Says(
            None,
            "OTHER_SIZES",
            "64 ranks (0-63) have entered different sizes as number 17 of the default group: "
            "[[1024]] Float by 0-31; [[8]] Float by 32-63; they are in train.py:90 step",
        ),
    ),
    "sizes that may differ": (
        {
            rank: make_rank(DEFAULT.at(17, operation="gloo:scatter", sizes=f"[[{rank}]]"))
            for rank in range(SIZE)
        },
        Says(
            None,
            "",
            "all 64 ranks wait in scatter number 17 of the default group, none in another place: "
            f"{NETWORK}",
        ),
    ),
    "none waits": (
        halves(make_rank(DEFAULT.at(16, 16)), make_rank(DEFAULT.at(16, 16), stack=IN_LOAD)),
        Says(None, "", "the ranks are in 2 different places, and none waits in a collective"),
    ),
    "no torch, one apart": (
        make_world(SIZE, make_rank(gaps=UNSEEN), {3: make_rank(stack=IN_LOAD, gaps=UNSEEN)}),
        Says(
            3,
            "OTHER_STACK",
            "rank 3 is in train.py:88 load_batch, 63 ranks in train.py:90 step",
        ),
    ),
    "no torch, two apart": (
        make_world(
            SIZE,
            make_rank(gaps=UNSEEN),
            dict.fromkeys((3, 9), make_rank(stack=IN_LOAD, gaps=UNSEEN)),
        ),
        Says(
            None,
            "OTHER_STACK",
            "2 ranks (3,9) are in train.py:88 load_batch, 62 ranks in train.py:90 step",
        ),
    ),
    "no torch, all alike": (
        halves(make_rank(gaps=UNSEEN), make_rank(gaps=UNSEEN)),
        Says(None, "", f"all 64 ranks are in the same place, train.py:90 step: {NETWORK}"),
    ),
    "no torch, one without an answer": (
        make_world(SIZE, make_rank(gaps=UNSEEN), {3: None}),
        Says(
            None,
            "NO_ANSWER",
            f"all 63 ranks are in the same place, train.py:90 step: {NETWORK}; "
            "1 rank has not answered",
        ),
    ),
    "no answer at all": (
        halves(None, None),
        Says(None, "NO_ANSWER", "no rank has answered"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_evidence_says(name: str) -> None:
    """The culprit, the findings and the line for a person, for each way to stand still."""
    given, says = CASES[name]
    evidence = fold_world(given)

    kinds = " ".join(finding.kind.name for finding in evidence.findings)
    assert says == Says(evidence.culprit, kinds, evidence.text)


def test_finding_has_its_collective() -> None:
    """A finding names the ranks, the group and the number that it is about."""
    evidence = fold_world(one_apart(make_rank(DEFAULT.at(16, 16), stack=IN_LOAD)))
    (finding,) = evidence.findings

    assert (FindingKind.NOT_ENTERED, "0", 17) == (finding.kind, finding.group, finding.number)
    assert [(3, 3)] == [(span.first, span.last) for span in finding.ranks]
    assert evidence.text == finding.text


def test_stack_of_a_rank_that_waits_accuses_no_one() -> None:
    """Two ranks stand apart: one waits in the collective too, and only the other is named."""
    elsewhere = make_rank(stack=IN_LOAD, gaps=UNSEEN)
    given = make_world(SIZE, WAITING, {3: elsewhere, 9: make_rank(DEFAULT.at(17), stack=IN_LOAD)})
    evidence = fold_world(given)

    assert evidence.culprit == 3
    assert [3, 9] == [finding.ranks[0].first for finding in evidence.findings]


def test_what_is_in_the_world_counts() -> None:
    """Ranks outside the world are ignored, and ranks without an entry have not answered."""
    evidence = fold_world({0: WAITING, 1: WAITING, 99: make_rank(stack=IN_STEP)}, world_size=3)

    assert (3, 2) == (evidence.world_size, evidence.answered)
    assert [2] == [group.count for group in evidence.groups]
    assert (4, "requested", 12) == (evidence.round, evidence.reason, evidence.took_ms)
