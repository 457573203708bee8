"""Barriers that fail: at once when someone cannot come, at the deadline, and for everyone."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.server.core.model.barrier import Break, BreakReason, Expected, ParticipantKind
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec
from support.core.barriers import TIMEOUT_MS, Meeting, named, node, rank
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, worker_exit

ALL_NODES = Expected(0, all_of=ParticipantKind.NODE)


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
