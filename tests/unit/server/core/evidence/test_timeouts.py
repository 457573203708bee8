"""Ranks that live after a collective has timed out for all others."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from msgspec.structs import replace

from rallypoint.server.core.evidence.waits import shows_hang
from rallypoint.server.core.model.evidence import FindingKind, ProcessState, RankEvidence
from support.core.evidence import IN_LOAD, Given, fold_world, make_default, make_rank

DEFAULT = make_default(8)
ALONE = make_rank(DEFAULT.at(5, 5), stack=IN_LOAD)
WAITING = make_rank(DEFAULT.at(6))
ENDED = RankEvidence(state=ProcessState.ENDED)
STOPPED = replace(ALONE, state=ProcessState.STOPPED)
RECEIVING = replace(ALONE, awaits_peer=True)


def others(*ranks: int) -> set[int]:
    """Return the ranks of 8 without these."""
    return set(range(8)).difference(ranks)


@pytest.mark.parametrize(
    ("given", "timed_out", "culprit"),
    [
        pytest.param({3: ALONE}, others(3), 3, id="the only one that lives"),
        pytest.param({3: ALONE, 5: ENDED}, others(3), 3, id="the rest have ended"),
        pytest.param({3: STOPPED}, others(3), 3, id="a signal has stopped it"),
        pytest.param({3: ALONE, 5: WAITING}, others(3, 5), 3, id="another one still waits for it"),
        pytest.param({3: ALONE, 5: WAITING}, others(3), 3, id="the same is about to end"),
        pytest.param({3: ALONE, 4: ALONE}, others(3, 4), None, id="one of two"),
        pytest.param({3: ALONE}, others(3, 4), None, id="another one has not answered"),
        pytest.param({3: RECEIVING}, others(3), None, id="it waits for a peer itself"),
        pytest.param({3: WAITING}, others(3), None, id="it waits in a collective itself"),
        pytest.param({3: ALONE}, (), None, id="nothing has timed out"),
        pytest.param({}, others(3), None, id="none has answered"),
    ],
)
def test_rank_that_did_not_come(
    given: Given, timed_out: Collection[int], culprit: int | None
) -> None:
    """It is named if nothing else may be the reason."""
    assert fold_world(given, 8, timed_out).culprit == culprit


def test_text_of_a_rank_that_did_not_come() -> None:
    """Ranks that have ended are not those that do not answer."""
    evidence = fold_world({3: ALONE}, 8, others(3))

    assert evidence.text == (
        "rank 3 did not come to the collective that timed out for 7 ranks; it is in "
        "train.py:88 load_batch"
    )
    assert [one.kind for one in evidence.findings] == [FindingKind.NOT_ENTERED]


@pytest.mark.parametrize(("count", "is_found"), [(2, True), (3, False)])
def test_many_that_live_may_be_victims(count: int, is_found: bool) -> None:
    """At most a quarter of the world is set apart, and none is the culprit alone."""
    living = range(count)
    evidence = fold_world(dict.fromkeys(living, ALONE), 8, others(*living))

    assert evidence.culprit is None
    kinds = {one.kind for one in evidence.findings}
    assert (FindingKind.NOT_ENTERED in kinds) is is_found


def test_one_that_lives_is_named_in_any_world() -> None:
    """Its only peer has waited for it."""
    evidence = fold_world({0: ALONE}, 2, {1})

    assert evidence.culprit == 0


def test_rank_of_which_nothing_is_known_is_not_named() -> None:
    """It may wait like the others: its agent cannot be asked, or it is not armed."""
    unasked = RankEvidence(3, gaps=("its agent cannot be asked",))

    assert fold_world({3: unasked}, 8, others(3)).culprit is None


@pytest.mark.parametrize(
    ("given", "culprit", "is_hang"),
    [
        ({}, None, False),
        ({0: ALONE}, 0, True),
        ({0: ALONE, 1: ALONE}, None, False),
        ({0: ALONE, 1: WAITING}, None, True),
        ({0: ALONE, 1: RECEIVING}, None, True),
        ({0: RankEvidence(0)}, None, True),
    ],
)
def test_evidence_of_a_hang(given: Given, culprit: int | None, is_hang: bool) -> None:
    """Workers with collectives, of which none waits, may compute something that takes long."""
    evidence = {rank: one for rank, one in given.items() if one is not None}

    assert shows_hang(evidence, culprit) is is_hang
