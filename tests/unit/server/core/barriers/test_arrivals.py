"""Arrivals at barriers: who counts, how often, and who is refused."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.server.core.barriers import arrivals
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.barrier import (
    ENDS_MAX,
    PAYLOADS_BYTES_MAX,
    REMEMBERED_MS,
    Expected,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.spec import JobSpec
from support.core.barriers import ALL_RANKS, TIMEOUT_MS, Meeting, named, node, rank
from support.core.coordinator import Bench

ALL_NODES = Expected(0, all_of=ParticipantKind.NODE)
PAIR = JobSpec(min_nodes=2, max_nodes=2)


def meeting(**facts: Any) -> Meeting:
    """Return a barrier of a round with the nodes a and b, which have two ranks each."""
    bench = Bench(PAIR)
    bench.run_round("a", "b", workers=2)
    return Meeting(bench, **facts)


def test_barrier_is_released_when_everybody_has_arrived() -> None:
    """Not earlier; everyone gets the payload of everyone, in order of their ranks."""
    at = meeting()
    for number in (3, 0, 2):
        assert at.arrive(rank(number), payload=b"%d" % number) is None
        assert at.ends() == []
    assert at.arrive(rank(1)) is None

    ended = at.the_end()
    assert ended.broken is None
    assert [(who.rank, arrival.payload) for who, arrival in ended.arrivals] == [
        (0, b"0"),
        (1, b""),
        (2, b"2"),
        (3, b"3"),
    ]
    assert at.arrived == []
    at.bench.check_journal()


def test_nodes_and_free_names_meet_as_well() -> None:
    """All nodes of the round; exactly these names; or as many as it takes, no matter which."""
    at = meeting()
    assert [at.arrive(node(name), ALL_NODES) for name in "ba"] == [None, None]
    pair = Expected(2, (named("x"), named("y")))
    names = Meeting(at.bench, "names")
    assert [names.arrive(named(name), pair) for name in "yx"] == [None, None]
    mixed = Meeting(at.bench, "mixed")
    some = (named("loader"), rank(3), node("b"))
    assert [mixed.arrive(who, Expected(3)) for who in some] == [None, None, None]

    assert [who for who, _ in at.the_end().arrivals] == [node("a"), node("b")]
    assert [who for who, _ in names.the_end().arrivals] == [named("x"), named("y")]
    assert [who for who, _ in mixed.the_end().arrivals] == [rank(3), node("b"), named("loader")]


def test_one_name_serves_in_a_loop() -> None:
    """Each generation has its own payloads, and a higher number."""
    at = meeting()
    for step in range(3):
        for number in range(4):
            assert at.arrive(rank(number), payload=b"%d" % step, generation=step + 1) is None

    assert [ended.generation for ended in at.ends()] == [1, 2, 3]
    payloads = [{arrival.payload for _, arrival in ended.arrivals} for ended in at.ends()]
    assert payloads == [{b"0"}, {b"1"}, {b"2"}]


def test_repeated_arrival_is_the_same_arrival() -> None:
    """While the generation is open, and after its end, when the answer was lost."""
    at = meeting()
    assert at.arrive(rank(0), request_id="mine", payload=b"x") is None
    assert at.arrive(rank(0), request_id="mine", payload=b"x") is None
    assert at.arrived == [rank(0)]
    for number in (1, 2, 3):
        at.arrive(rank(number))
    assert at.arrive(rank(0), request_id="mine", payload=b"x") is None

    assert len(at.ends()) == 1
    assert not at.barrier.is_open
    at.bench.advance(REMEMBERED_MS)
    assert at.barrier.ends == ()
    assert at.arrive(rank(0), request_id="mine") is None  # no one remembers: a new arrival
    assert at.barrier.generation == 2
    at.bench.check_journal()


def test_arrival_never_counts_twice_however_far_the_others_are() -> None:
    """They need not wait for one whose answer was lost: a generation can fail without it."""
    bench = Bench(PAIR)
    bench.run_round("a", "b")
    at = Meeting(bench)
    at.arrive(rank(0), payload=b"a1")
    at.arrive(rank(1), payload=b"b1", request_id="lost")
    for _ in range(ENDS_MAX):
        at.arrive(rank(0), timeout_ms=1_000)
        bench.advance(1_000)
    assert at.barrier.ends[0].generation == 2, "the first end is not remembered any more"

    assert at.arrive(rank(1), payload=b"b1", request_id="lost") is RefusalKind.GENERATION_OVER
    assert at.arrive(rank(1), payload=b"b2") is None
    bench.check_journal()


def test_participant_cannot_arrive_twice() -> None:
    """Two processes that claim the same rank are a mistake."""
    at = meeting()
    at.arrive(rank(0))

    assert at.arrive(rank(0)) is RefusalKind.PARTICIPANT_ARRIVED


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        (rank(4), ALL_RANKS),
        (node("c"), ALL_NODES),
        (node("a"), ALL_RANKS),
        (rank(1), Expected(2, (rank(0), rank(2)))),
        (named("z"), Expected(1, (named("x"),))),
    ],
)
def test_stranger_is_not_expected(who: Participant, expected: Expected) -> None:
    """A rank or node that the round does not have, or that is not among those named."""
    at = meeting()

    assert at.arrive(who, expected) is RefusalKind.NOT_EXPECTED


@pytest.mark.parametrize("other", [Expected(3), Expected(2, (rank(0), rank(1))), ALL_NODES])
def test_participants_must_expect_the_same(other: Expected) -> None:
    """The refusal names both; it disturbs no one who has arrived."""
    at = meeting()
    at.arrive(rank(0))
    who = node("a") if other is ALL_NODES else rank(1)

    assert at.arrive(who, other) is RefusalKind.BARRIER_MISMATCH
    assert at.arrived == [rank(0)]


def test_generation_that_is_not_open_is_refused() -> None:
    """An arrival may say at which generation it counts."""
    at = meeting()
    at.arrive(rank(0), generation=1)

    assert at.arrive(rank(1), generation=2) is RefusalKind.GENERATION_OVER
    for number in (1, 2, 3):
        assert at.arrive(rank(number), generation=1) is None
    assert at.arrive(rank(0), generation=1) is RefusalKind.GENERATION_OVER
    assert at.arrive(rank(0), generation=2) is None
    unknown = Meeting(at.bench, "unknown")
    assert unknown.arrive(rank(0), generation=7) is RefusalKind.GENERATION_OVER


def test_attempt_from_long_ago_counts_no_more() -> None:
    """A coordinator that was suspended forwards it when the others are many generations on."""
    at = meeting()
    for step in range(9, 9 + 2 * ENDS_MAX):
        for number in range(4):
            assert at.arrive(rank(number), request_id=f"w{number}#{step}") is None

    assert at.arrive(rank(1), request_id="w1#10") is RefusalKind.GENERATION_OVER
    assert at.arrived == []
    at.arrive(rank(0), request_id="w0#1000")
    assert at.arrive(rank(1), request_id="w1#10") is RefusalKind.GENERATION_OVER
    assert at.arrive(rank(1), request_id="v1#10") is None, "another process has other ids"
    assert at.arrive(rank(2), request_id="random") is None


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"is_signed": False}, RefusalKind.TOKEN_REFUSED),
        ({"run": 2}, RefusalKind.RUN_OVER),
        ({"round": 7}, RefusalKind.OLD_ROUND),
    ],
)
def test_only_workers_of_the_round_may_arrive(facts: dict[str, Any], kind: RefusalKind) -> None:
    """What their token says counts, not what they say."""
    assert meeting(claim_facts=facts).arrive(rank(0)) is kind


def test_worker_of_an_earlier_round_is_refused() -> None:
    """From the stop of its round on."""
    at = meeting()
    old = {"round": at.bench.job().round_number}
    next(iter(at.bench.agents.values())).leave("bye")
    assert at.arrive(rank(0)) is RefusalKind.OLD_ROUND
    at.bench.join("c", workers=2)
    at.bench.obey()
    assert at.bench.job().round_number == old["round"] + 1

    assert Meeting(at.bench, claim_facts=old).arrive(rank(0)) is RefusalKind.OLD_ROUND
    assert at.arrive(rank(0)) is None


def test_payloads_are_bounded_together() -> None:
    """Everyone gets all of them; the one that is too much is refused."""
    at = meeting()
    half = bytes(PAYLOADS_BYTES_MAX // 2)
    assert [at.arrive(rank(number), payload=half) for number in (0, 1)] == [None, None]

    assert at.arrive(rank(2), payload=b"x") is RefusalKind.LIMIT_REACHED
    assert [at.arrive(rank(number)) for number in (2, 3)] == [None, None]
    assert at.arrive(rank(0), payload=half) is None, "the next generation has room again"


def test_names_are_bounded_and_the_oldest_that_nobody_uses_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A barrier at which someone waits is not forgotten."""
    names_max, open_max = 20, 5
    monkeypatch.setattr(arrivals, "NAMES_MAX", names_max)
    monkeypatch.setattr(arrivals, "OPEN_MAX", open_max)
    bench = Bench()
    bench.run_round("a")
    waits = Meeting(bench, "waits")
    waits.arrive(rank(0), Expected(2))
    for number in range(names_max + 10):
        assert Meeting(bench, f"n{number}").arrive(rank(0)) is None
    assert len(bench.state.barriers[waits.key.job_id]) == names_max
    assert waits.barrier.is_open

    for number in range(open_max - 1):
        assert Meeting(bench, f"open{number}").arrive(rank(0), Expected(2)) is None
    assert Meeting(bench, "more").arrive(rank(0), Expected(2)) is RefusalKind.LIMIT_REACHED


def test_retry_after_a_restart_without_memory_says_that_it_is_unknown() -> None:
    """The first attempt may have been released, so a fresh barrier could wait for ever."""
    at = meeting()
    epoch = at.bench.state.first_epoch

    assert at.arrive(rank(0), epoch=epoch - 1) is RefusalKind.BARRIER_FORGOTTEN
    assert at.arrive(rank(0), epoch=epoch) is None
    spare = at.bench.agent("c")
    spare.epoch = epoch + 5
    spare.hello()
    assert at.bench.state.epoch > epoch, "raised by an agent of another coordinator"
    assert at.arrive(rank(1), epoch=epoch) is None, "it remembers this run all the same"


def test_open_barrier_is_in_the_journal() -> None:
    """A coordinator with a journal continues it: who has arrived, and until when it waits."""
    at = meeting()
    at.arrive(rank(2), payload=b"x", timeout_ms=TIMEOUT_MS // 2)
    at.arrive(rank(0))

    at.bench.check_journal()
    assert at.barrier.deadline_ms == at.bench.now_ms + TIMEOUT_MS // 2
