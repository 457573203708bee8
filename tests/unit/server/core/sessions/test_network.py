"""Many breaks at once, or a stalled coordinator, make the network suspect, not the nodes."""

from __future__ import annotations

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.network import SLOT_MS, WITHIN_MS, NetworkSuspicion, note_break
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent

GRACE_MS = 500
LEASE_MS = 5_000


def crowd(size: int) -> tuple[Bench, tuple[FakeAgent, ...]]:
    """Return a bench with a started round of so many nodes."""
    bench = Bench(JobSpec(min_nodes=1, max_nodes=size, grow=False))
    return bench, bench.run_round(*(f"n{number}" for number in range(size)))


def lost(bench: Bench) -> list[str]:
    return [str(departure.name) for departure in bench.job().lost]


@pytest.mark.parametrize(
    ("size", "breaking", "suspected"),
    [(4, 2, False), (4, 3, True), (12, 3, True), (13, 3, False), (13, 4, True)],
)
def test_three_sessions_and_a_quarter_of_all(size: int, breaking: int, suspected: bool) -> None:
    """Three breaks that are a quarter of all sessions make the network suspect; fewer do not."""
    bench, agents = crowd(size)
    for agent in agents[:breaking]:
        agent.break_off()

    bench.advance(GRACE_MS)

    assert ([] if suspected else [f"n{number}" for number in range(breaking)]) == lost(bench)


def jobs(count: int, size: int) -> tuple[Bench, list[tuple[FakeAgent, ...]]]:
    """Return a bench with so many jobs, each with a started round of so many nodes."""
    bench = Bench(JobSpec(min_nodes=1, max_nodes=size, grow=False))
    names = [f"n{number}" for number in range(size)]
    return bench, [bench.run_round(*names, job_id=f"job{number}") for number in range(count)]


def is_harmed(bench: Bench, job: int) -> bool:
    return bool(bench.job(f"job{job}").lost)


@pytest.mark.parametrize(
    ("count", "breaking", "suspected"), [(4, 2, False), (4, 3, True), (13, 3, False), (12, 3, True)]
)
def test_three_jobs_and_a_quarter_of_all(count: int, breaking: int, suspected: bool) -> None:
    """Small jobs that break together make the network suspect for all jobs; fewer do not."""
    bench, all_agents = jobs(count, size=2)
    for agents in all_agents[:breaking]:
        agents[0].break_off()

    bench.advance(GRACE_MS)

    assert [not suspected] * breaking == [is_harmed(bench, job) for job in range(breaking)]


def test_churn_of_one_job_harms_no_other() -> None:
    """However often a job's sessions come and go, another job's failure is noticed at once."""
    bench, ((a, _),) = jobs(1, size=2)
    for _ in range(10):
        strangers = bench.join("s1", "s2", "s3", "s4", job_id="stranger", explicit=False)
        for stranger in strangers:
            stranger.break_off()
        bench.advance(WITHIN_MS // 4)
    a.break_off()

    bench.advance(GRACE_MS)

    assert is_harmed(bench, 0)


def test_suspected_break_ends_with_a_lease() -> None:
    """The nodes are lost a lease after their break, not 1 ms earlier."""
    bench, agents = crowd(4)
    for agent in agents[:3]:
        agent.break_off()

    bench.advance(LEASE_MS - 1)
    assert (Phase.RUNNING, []) == (bench.job().phase, lost(bench))

    bench.advance(1)
    assert ["n0", "n1", "n2"] == lost(bench)
    assert "was not restored within 5 s" in bench.job().lost[0].text


def test_break_shortly_before_the_third_counts() -> None:
    """A node still in its grace period when the third stream breaks gets its lease too."""
    bench, (a, b, c, _) = crowd(4)
    a.break_off()
    bench.advance(GRACE_MS - 1)
    b.break_off()
    c.break_off()

    bench.advance(LEASE_MS - GRACE_MS)
    assert [] == lost(bench)

    bench.advance(1)
    assert ["n0"] == lost(bench)


def test_further_break_while_it_lasts() -> None:
    """A single break during the suspicion gets its lease; after it, only the grace period."""
    bench, (a, b, c, d) = crowd(4)
    for agent in (a, b, c):
        agent.break_off()
        agent.hello(held=agent.held_round())
    bench.advance(LEASE_MS - 2 * GRACE_MS)
    d.break_off()
    bench.advance(GRACE_MS)
    assert [] == lost(bench)
    d.hello(held=d.held_round())

    bench.advance(LEASE_MS)
    d.break_off()
    bench.advance(GRACE_MS)
    assert ["n3"] == lost(bench)


def test_all_that_come_back_keep_their_round() -> None:
    """No round stops when all nodes come back within the lease."""
    bench, agents = crowd(8)
    for agent in agents:
        agent.break_off()
    bench.advance(LEASE_MS - 1)
    for agent in agents:
        agent.hello(held=agent.held_round())
    bench.advance(10 * LEASE_MS)

    assert (Phase.RUNNING, 1, 0) == (
        bench.job().phase,
        len(bench.rounds()),
        bench.job().counts.restart_count,
    )


def test_breaks_that_are_spread_out_are_deaths() -> None:
    """Three breaks spread over more than a second are three lost nodes."""
    bench, agents = crowd(4)
    for agent in agents[:3]:
        agent.break_off()
        bench.advance(WITHIN_MS // 2)

    assert ["n0", "n1", "n2"] == lost(bench)


@pytest.mark.parametrize(("late_ms", "suspected"), [(LEASE_MS // 2, True), (2_499, False)])
def test_stream_that_breaks_after_a_stall_has_its_lease(late_ms: int, suspected: bool) -> None:
    """After a long stall, a break gets its lease: the agents may have given up the stream."""
    bench, (a, _) = crowd(2)
    bench.take(inputs.Stalled(late_ms))
    a.break_off()

    bench.advance(GRACE_MS)

    assert ([] if suspected else ["n0"]) == lost(bench)


def test_grace_that_runs_through_a_stall_becomes_a_lease() -> None:
    """A node that disconnected just before a stall is not lost just after it."""
    bench, (a, _) = crowd(2)
    a.break_off()
    bench.advance(GRACE_MS - 1)
    bench.take(inputs.Stalled(10_000))

    bench.advance(LEASE_MS - GRACE_MS)
    assert [] == lost(bench)

    bench.advance(1)
    assert ["n0"] == lost(bench)


@pytest.mark.parametrize("min_nodes", [1, 5])
def test_wait_says_that_the_network_is_suspected(min_nodes: int) -> None:
    """The wait names the nodes, both while a round runs and while one forms."""
    bench = Bench(JobSpec(min_nodes=min_nodes, max_nodes=5))
    agents = bench.join("n0", "n1", "n2", "n3")
    bench.advance(bench.spec.last_call_ms)
    bench.obey()
    for agent in agents[:2]:
        agent.break_off()
    before = bench.wait()
    agents[2].break_off()
    waiting = bench.the_wait()

    assert before is None or before.kind is WaitKind.RETURNING
    assert (WaitKind.NETWORK_SUSPECTED, ["n0", "n1", "n2"]) == (
        waiting.kind,
        [awaited.name for awaited in waiting.awaited],
    )
    assert "many connections broke at once" in waiting.text
    assert ["network_suspected"] == [event for event in bench.events() if "network" in event]


def test_what_is_kept_of_breaks_has_a_limit() -> None:
    """For any number of breaks, one second of slots is kept, and the count is right."""
    suspicion = NetworkSuspicion()
    for at_ms in range(0, 10 * WITHIN_MS, 7):
        suspicion = note_break(suspicion, 1_000_000, at_ms, LEASE_MS)
        recent = sum(slot_ms > at_ms - WITHIN_MS for slot_ms in _slots(at_ms))

        assert len(suspicion.slots) <= WITHIN_MS // SLOT_MS
        assert recent == suspicion.breaks()
    assert not suspicion.is_active(10 * WITHIN_MS)


def _slots(until_ms: int) -> list[int]:
    return [at_ms - at_ms % SLOT_MS for at_ms in range(0, until_ms + 1, 7)]
