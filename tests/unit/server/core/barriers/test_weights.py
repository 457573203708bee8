"""What barriers take of the coordinator's memory is counted and bounded, as with keys."""

from __future__ import annotations

import sys

import pytest

from rallypoint.server.core.barriers import arrivals
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model import barrier as model
from rallypoint.server.core.model.barrier import Expected
from rallypoint.server.core.state.holding import ARRIVAL_BYTES, Holding
from support.core.barriers import Meeting, named, rank
from support.core.coordinator import Bench
from support.core.fake_agents import JOB

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
