"""Whatever workers send, their evidence is folded, within its bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.base.ranges import to_ranges
from rallypoint.server.core.evidence.folding import TEXT_CHARS_MAX
from rallypoint.server.core.model.evidence import (
    FINDINGS_MAX,
    Collective,
    Evidence,
    Frame,
    GroupProgress,
    ProcessState,
    RankEvidence,
    RankRange,
    ThreadStack,
)
from rallypoint.v1 import evidence_pb2
from rallypoint.wire.mapping import Mapper
from support.core.evidence import fold_world

RANK_EVIDENCE = Mapper(RankEvidence, evidence_pb2.RankEvidence)
EVIDENCE = Mapper(Evidence, evidence_pb2.Evidence, apart=("age",))
SMALL = st.integers(0, 4) | st.just(2**26 - 1)
NUMBERS = SMALL | st.just(2**53 - 1)
NAMES = st.sampled_from(["", "0", "1", "gloo:all_reduce", "nccl:barrier", "scatter", "x" * 256])
RANGES = st.builds(RankRange, st.integers(0, 8) | SMALL, st.integers(0, 8) | SMALL)
WORLDS = st.sampled_from([(), (RankRange(0, 3),), (RankRange(0, 1),), (RankRange(0, 2**26 - 1),)])
GROUPS = st.builds(
    GroupProgress,
    name=NAMES,
    description=st.sampled_from(["", "default_pg", "undefined", "d" * 256]),
    members=WORLDS | st.lists(RANGES, max_size=4).map(tuple),
    entered=NUMBERS,
    completed=NUMBERS,
    latest=st.lists(st.builds(Collective, NUMBERS, NAMES, NAMES, NAMES), max_size=4).map(tuple),
)
FRAMES = st.lists(st.builds(Frame, NAMES, NAMES, SMALL), max_size=2).map(tuple)
RANKS = st.builds(
    RankEvidence,
    rank=st.none() | SMALL,
    state=st.sampled_from(ProcessState),
    waits_in=NAMES,
    threads=st.lists(st.builds(ThreadStack, st.booleans(), FRAMES), max_size=2).map(tuple),
    groups=st.lists(GROUPS, max_size=4).map(tuple),
    gaps=st.lists(NAMES, max_size=1).map(tuple),
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 6), st.dictionaries(st.integers(-1, 7), st.none() | RANKS, max_size=8))
def test_any_evidence_is_folded(size: int, ranks: dict[int, RankEvidence | None]) -> None:
    """The culprit is in the world, the groups part the ranks, and everything is bounded."""
    evidence = fold_world(ranks, world_size=size)

    answered = {rank for rank, one in ranks.items() if one is not None and 0 <= rank < size}
    in_groups = [
        rank
        for group in evidence.groups
        for span in group.ranks
        for rank in range(span.first, span.last + 1)
    ]
    assert sorted(answered) == sorted(in_groups)
    assert len(answered) == evidence.answered == sum(group.count for group in evidence.groups)
    assert evidence.culprit is None or 0 <= evidence.culprit < size
    assert len(evidence.findings) <= FINDINGS_MAX
    for text in (evidence.text, *(finding.text for finding in evidence.findings)):
        assert 0 < len(text) <= TEXT_CHARS_MAX
    for finding in evidence.findings:
        named = [rank for span in finding.ranks for rank in range(span.first, span.last + 1)]
        assert named
        assert set(named) <= set(range(size))
        assert to_ranges(named) == tuple((span.first, span.last) for span in finding.ranks)
    if evidence.culprit is not None:
        assert any(
            span.first <= evidence.culprit <= span.last
            for finding in evidence.findings
            for span in finding.ranks
        )


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.integers(0, 5), RANKS, max_size=6))
def test_order_of_arrival_does_not_matter(ranks: dict[int, RankEvidence]) -> None:
    """The same evidence in another order says the same."""
    turned = dict(reversed(ranks.items()))

    assert fold_world(ranks, world_size=6) == fold_world(turned, world_size=6)


@settings(max_examples=50, deadline=None)
@given(RANKS)
def test_evidence_crosses_the_wire(one: RankEvidence) -> None:
    """The structs mirror the messages of the contract."""
    folded = fold_world({0: one, 1: None, 2: one, 3: one})

    assert one == RANK_EVIDENCE.to_struct(RANK_EVIDENCE.to_message(one))
    assert folded == EVIDENCE.to_struct(EVIDENCE.to_message(folded))


def test_newer_state_is_unspecified() -> None:
    """A worker of a newer version may be in a state that has no member here."""
    newer = evidence_pb2.RankEvidence.FromString(bytes((3 << 3, 99)))

    assert RANK_EVIDENCE.to_struct(newer).state is ProcessState.UNSPECIFIED
