"""Barriers: who counts, how they fail, and what they take of the coordinator's memory."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rallypoint.server.core.barriers import arrivals
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model import barrier as model
from rallypoint.server.core.model.barrier import (
    ENDS_MAX,
    PAYLOADS_BYTES_MAX,
    REMEMBERED_MS,
    Break,
    BreakReason,
    Expected,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state.holding import ARRIVAL_BYTES, Holding
from support.core.barriers import ALL_RANKS, TIMEOUT_MS, Meeting, named, node, rank
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, FakeAgent, worker_exit

# --- Arrivals at barriers: who counts, how often, and who is refused ---

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


# Barriers that fail: at once when someone cannot come, at the deadline, and for everyone.


def start(spec: JobSpec | None = None) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a round with the nodes a and b, which have two ranks each."""
    bench = Bench(spec or JobSpec(min_nodes=2, max_nodes=2, max_restarts=3))
    a, b = bench.run_round("a", "b", workers=2)
    return bench, a, b


def the_break(at: Meeting) -> Break:
    broken = at.the_end().broken
    assert broken is not None
    at.bench.check_journal()
    return broken


def test_worker_that_fails_is_named_at_once() -> None:
    """Also while the round waits for the culprit: no one waits for a dead worker."""
    bench, _, b = start()
    at = Meeting(bench)
    at.arrive(rank(0))
    at.arrive(rank(1))
    b.fail(worker_exit(7, local_rank=1))

    broken = the_break(at)
    assert (broken.reason, broken.lost) == (BreakReason.LOST, (rank(3),))
    assert (broken.missing, broken.missing_count) == ((rank(2), rank(3)), 2)
    assert broken.text == "rank 3 on node b failed: exit code 7"


def test_barrier_opened_after_the_failure_fails_too() -> None:
    """The round may run on for a moment, in search of the culprit."""
    bench, _, b = start()
    b.record(worker_exit(None, said="RuntimeError: x"))
    at = Meeting(bench)
    assert bench.job().phase is Phase.RUNNING
    assert at.arrive(rank(0)) is None
    assert the_break(at).lost == (rank(2),)


def test_lost_node_is_named_with_its_ranks() -> None:
    """As a node where nodes meet, and as ranks where ranks do."""
    bench, _, b = start()
    ranks, nodes = Meeting(bench, "ranks"), Meeting(bench, "nodes")
    names = Meeting(bench, "names")
    ranks.arrive(rank(0))
    nodes.arrive(node("a"), ALL_NODES)
    names.arrive(named("x"), Expected(2, (named("x"), named("y"))))
    b.break_off()
    bench.advance(60_000)

    assert the_break(ranks).lost == (rank(2), rank(3))
    assert the_break(nodes).lost == (node("b"),)
    assert the_break(names).lost == ()
    assert the_break(names).missing == (named("y"),)


def test_rank_that_ended_well_cannot_arrive_any_more() -> None:
    """Others need not wait for it; if it has arrived before, the barrier does not need it."""
    bench, a, _ = start()
    waits, passes = Meeting(bench, "waits"), Meeting(bench, "passes")
    passes.arrive(rank(0))
    waits.arrive(rank(1))
    a.exit(worker_exit(0, local_rank=0))

    broken = the_break(waits)
    assert (broken.reason, broken.lost) == (BreakReason.LOST, (rank(0),))
    assert broken.text == "rank 0 ended with exit code 0 and did not arrive"
    for number in (1, 2, 3):
        passes.arrive(rank(number))
    assert passes.the_end().broken is None


def test_node_whose_ranks_have_ended_cannot_arrive_any_more() -> None:
    """Others that wait for all nodes are answered at once, also when the node has left."""
    bench, a, _ = start()
    a.exit(worker_exit(0, local_rank=0), worker_exit(0, local_rank=1))
    a.succeed()
    at, late = Meeting(bench), Meeting(bench, "late")
    at.arrive(node("b"), ALL_NODES)
    assert the_break(at).lost == (node("a"),)
    a.goodbye()
    late.arrive(rank(2))

    assert the_break(late).lost == (rank(0), rank(1))


@pytest.mark.parametrize("of_run", [False, True])
def test_stopped_round_takes_its_workers_along(of_run: bool) -> None:
    """Also at barriers of the run: those who wait there are stopped. The run's name lives on."""
    bench, a, _ = start()
    at = Meeting(bench, of_run=of_run)
    key = at.key
    at.arrive(rank(0), Expected(2))
    a.leave("bye")

    broken = the_break(at)
    assert (broken.reason, broken.text) == (BreakReason.LOST, "node a is gone: bye")
    assert (key in bench.state.barriers.get(key.job_id, {})) == of_run


def test_barrier_of_the_run_continues_its_generations_in_the_next_round() -> None:
    """What belongs to the round is dropped with it, and does not come back."""
    bench, _, b = start()
    of_round, of_run = Meeting(bench, "round"), Meeting(bench, "run", of_run=True)
    for at in (of_round, of_run):
        at.arrive(rank(0), Expected(1))
    b.fail(worker_exit(1))
    bench.obey()
    bench.advance(60_000)
    bench.obey()
    assert bench.job().round_number == 2
    for at in (of_round, of_run):
        assert at.arrive(rank(0), Expected(1)) is None

    assert [ended.generation for ended in of_round.ends()] == [1, 1]
    assert [ended.generation for ended in of_run.ends()] == [1, 2]


def test_end_of_the_run_drops_everything() -> None:
    """Who still waits learns it; the state holds nothing of the run."""
    bench, a, b = start()
    at = Meeting(bench, "b", of_run=True)
    at.arrive(named("x"), Expected(2))
    for agent in (a, b):
        agent.exit(worker_exit(0, local_rank=0), worker_exit(0, local_rank=1))
        agent.succeed()

    assert bench.job().phase is Phase.CLOSED
    assert the_break(at).reason is BreakReason.ROUND_STOPPED
    assert (bench.state.barriers, bench.state.arrivals) == ({}, {})


@pytest.mark.parametrize("timeouts", [(2_000, 9_000), (9_000, 2_000)])
def test_first_deadline_counts_for_everybody(timeouts: tuple[int, int]) -> None:
    """All learn the same: who is missing."""
    bench, _, _ = start()
    at = Meeting(bench)
    for number, timeout_ms in enumerate(timeouts):
        at.arrive(rank(number), timeout_ms=timeout_ms)
    bench.advance(1_999)
    assert at.ends() == []
    bench.advance(1)

    broken = the_break(at)
    assert (broken.reason, broken.missing) == (BreakReason.OVERDUE, (rank(2), rank(3)))
    assert broken.text == "not all participants arrived within 2 s"
    assert [who for who, _ in at.the_end().arrivals] == [rank(0), rank(1)]
    assert at.arrive(rank(2)) is None, "the next generation begins"
    assert at.barrier.generation == 2


def test_retry_with_less_time_ends_the_wait_earlier() -> None:
    """Otherwise its call would end before the barrier, and learn nothing."""
    bench, _, _ = start()
    at = Meeting(bench)
    at.arrive(rank(0), request_id="mine", timeout_ms=9_000, payload=b"x")
    assert at.arrive(rank(0), request_id="mine", timeout_ms=2_000, payload=b"x") is None
    assert at.arrive(rank(0), request_id="mine", timeout_ms=5_000, payload=b"x") is None
    assert at.barrier.payload_bytes == 1
    bench.check_journal()
    bench.advance(2_000)

    assert the_break(at).reason is BreakReason.OVERDUE


def test_retry_after_the_failure_gets_the_same_failure() -> None:
    """It does not open the next generation."""
    bench, _, _ = start()
    at = Meeting(bench)
    at.arrive(rank(0), request_id="mine", timeout_ms=1_000)
    bench.advance(1_000)

    assert at.arrive(rank(0), request_id="mine", timeout_ms=1_000) is None
    assert not at.barrier.is_open
    assert at.barrier.ends == (at.the_end(),)


def test_many_barriers_have_one_deadline_each() -> None:
    """Each fails at its own time."""
    bench, _, _ = start()
    meetings = [Meeting(bench, f"b{number}") for number in range(5)]
    for number, at in enumerate(meetings):
        at.arrive(rank(0), timeout_ms=TIMEOUT_MS - 10_000 * number)
    over: list[Any] = []
    for _ in range(5):
        bench.advance(10_000)
        over.append([at.name for at in meetings if at.ends()])

    assert over == [[], ["b4"], ["b3", "b4"], ["b2", "b3", "b4"], ["b1", "b2", "b3", "b4"]]


# --- What barriers take of the coordinator's memory is counted and bounded, as with keys ---

LONG = "x" * 253


def running() -> Bench:
    """Return a coordinator with a round of one rank."""
    bench = Bench()
    bench.run_round("a")
    return bench


def weight(bench: Bench) -> int:
    """Return what all barriers weigh."""
    return bench.state.holding.barriers


def test_payloads_count_until_they_are_forgotten() -> None:
    """Those of the open generation, and of the ends that are remembered."""
    bench, size = running(), 10_000
    at = Meeting(bench)
    for number in range(10):
        at.arrive(named(f"n{number}"), Expected(1), payload=bytes(size))
    assert model.ENDS_MAX * size < weight(bench) < (model.ENDS_MAX + 1) * size

    bench.advance(model.REMEMBERED_MS)
    bench.advance(1)
    assert weight(bench) < size

    at.arrive(named("a"), Expected(2), payload=bytes(size))
    assert weight(bench) > size


def test_expected_names_count() -> None:
    """They are kept while the barrier is open."""
    bench = running()
    expected = Expected(100, tuple(sorted(named(f"{number:03}{LONG}") for number in range(100))))
    Meeting(bench).arrive(expected.participants[0], expected)

    assert weight(bench) > 100 * len(LONG)


def test_fresh_names_in_a_loop_are_not_remembered_for_ever() -> None:
    """Of names that come once, only the latest are; of ranks, each."""
    bench = running()
    at = Meeting(bench)
    at.arrive(rank(0), Expected(1), request_id="w#1")
    for number in range(model.PARTICIPANTS_MAX + 500):
        at.arrive(named(f"loader-{number}"), Expected(1))
    counted = bench.state.counted[at.key]

    assert model.PARTICIPANTS_MAX + 1 == len(counted)
    assert rank(0) in counted
    assert at.arrive(rank(0), Expected(1), request_id="w#1") is RefusalKind.GENERATION_OVER


def test_job_forgets_ends_before_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arrival that would exceed the limit makes room first; no other barrier is lost."""
    most, size = 400_000, 50_000
    monkeypatch.setattr(arrivals, "WEIGHT_MAX", most)
    monkeypatch.setattr(arrivals, "RANK_WEIGHT", 0)
    bench = running()
    for number in range(50):
        at = Meeting(bench, f"b{number}")
        assert at.arrive(named("a"), Expected(1), payload=bytes(size)) is None
        assert weight(bench) <= most
    opened = [
        Meeting(bench, f"open{number}").arrive(named("a"), Expected(2), payload=bytes(size))
        for number in range(50)
    ]

    assert weight(bench) <= most
    assert opened[:5] == [None] * 5
    assert RefusalKind.LIMIT_REACHED is opened[-1]


def test_total_of_the_process_bounds_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another shard of it holds counts too; a rank that brings nothing has some more room."""
    monkeypatch.setattr(arrivals, "TOTAL_WEIGHT_MAX", 100_000)
    monkeypatch.setattr(arrivals, "BARE_WEIGHT_MAX", 20_000)
    bench = running()
    other = Holding(barriers=99_000)
    bench.state.together.parts.append(other)

    large = Meeting(bench).arrive(rank(0), Expected(2), payload=bytes(2_000))
    assert large is RefusalKind.LIMIT_REACHED
    assert Meeting(bench).arrive(rank(0), Expected(2)) is None
    other.barriers = 120_000
    assert Meeting(bench, "c").arrive(rank(0), Expected(2)) is RefusalKind.LIMIT_REACHED
    bench.state.together.remove(other)
    assert Meeting(bench, "c").arrive(rank(0), Expected(2), payload=bytes(2_000)) is None


def test_weight_is_the_same_after_a_restart() -> None:
    """And nothing when the job is gone."""
    bench = running()
    at = Meeting(bench)
    for number in range(3):
        at.arrive(named(f"n{number}"), Expected(1), payload=bytes(1_000))
    at.arrive(named("waits"), Expected(2), payload=bytes(1_000))
    before = bench.state.holding
    bench.restart()

    assert bench.state.holding is not before
    assert bench.state.holding.of_barriers == before.of_barriers
    assert bench.state.holding.of_jobs == {JOB: before.barriers}


def test_weight_is_about_the_memory() -> None:
    """The constant is not far from what an arrival takes."""
    who, key = named("n" * 20), "r" * 40
    arrival = model.Arrival(key, 1, 0)
    parts = (who, who.name, arrival, key, (who, arrival), (key, 1))
    measured = sum(map(sys.getsizeof, parts)) + 100  # of the entry of a dict

    assert ARRIVAL_BYTES / 2 < measured < 2 * ARRIVAL_BYTES
