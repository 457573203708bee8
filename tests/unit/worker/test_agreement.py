"""How ranks agree on a checkpoint, also when some miss an answer."""

from __future__ import annotations

import random

from rallypoint.worker.agreement import Agreement
from rallypoint.worker.notices import Notice


def drain(node: str) -> Notice:
    return Notice("drain", node, False, "maintenance", 1000.0)


def gather(ranks: list[Agreement], seen: list[list[Notice]]) -> list[bool | None]:
    """Let all ranks meet once."""
    proposals = [rank.propose(notices) for rank, notices in zip(ranks, seen, strict=True)]
    return [rank.decide(proposals) for rank in ranks]


def test_one_notice_is_one_checkpoint() -> None:
    """Whichever rank finds it first, and whenever the others do."""
    ranks = [Agreement() for _ in range(3)]
    a = drain("a")

    assert [False] * 3 == gather(ranks, [[], [], []])
    assert [True] * 3 == gather(ranks, [[], [a], []])
    assert [False] * 3 == gather(ranks, [[a], [a], []])
    assert [False] * 3 == gather(ranks, [[a], [a], [a]])


def test_next_notice_is_another_checkpoint() -> None:
    """The drain of another node, or a growth."""
    ranks = [Agreement() for _ in range(2)]
    a, b, growth = drain("a"), drain("b"), Notice("growth", "", False, "", 1.0)

    assert [True] * 2 == gather(ranks, [[a], []])
    assert [True] * 2 == gather(ranks, [[a], [a, b]])
    assert [True] * 2 == gather(ranks, [[a, b, growth], [a]])


def test_many_notices_take_turns() -> None:
    """A proposal is short, however many nodes drain at once."""
    (rank,) = ranks = [Agreement()]
    notices = [drain(f"n{number}") for number in range(9)]
    assert len(rank.propose(notices)) < 32

    assert [[True], [True], [True], [False]] == [gather(ranks, [notices]) for _ in range(4)]


def test_rank_that_missed_an_answer_learns_it() -> None:
    """From those who got it; they wait until it has."""
    a = drain("a")
    ranks = [Agreement() for _ in range(3)]
    proposals = [rank.propose([a]) for rank in ranks]
    assert [True, True] == [rank.decide(proposals) for rank in ranks[:2]]

    assert [None, None, True] == gather(ranks, [[a], [a], [a]])
    # The one that missed it does not know which notice it was, so all save once more.
    assert [True] * 3 == gather(ranks, [[a], [a], [a]])
    assert [False] * 3 == gather(ranks, [[a], [a], [a]])


def test_all_ranks_get_the_same_answers_whatever_is_lost() -> None:
    """For each call, over many random losses and moments at which ranks find notices."""
    for seed in range(300):
        draw = random.Random(seed)
        ranks = [Agreement() for _ in range(4)]
        seen: list[list[Notice]] = [[] for _ in ranks]
        answers: list[list[bool]] = [[] for _ in ranks]
        while min(map(len, answers)) < 20:
            for notices in seen:
                if draw.random() < 0.1:
                    notices.append(drain(f"n{len(notices)}"))
            proposals = [rank.propose(found) for rank, found in zip(ranks, seen, strict=True)]
            got = [draw.random() > 0.2 for _ in ranks] if draw.random() < 0.3 else [True] * 4
            for number, rank in enumerate(ranks):
                answer = rank.decide(proposals) if got[number] else None
                if answer is not None:
                    answers[number].append(answer)
        assert len({tuple(found[:20]) for found in answers}) == 1, seed
        assert True in answers[0], seed
