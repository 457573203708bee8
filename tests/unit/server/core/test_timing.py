"""Heartbeats and leases that a job requests, and the sessions that they apply to."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.base.limits import LEASE_MS_MIN
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.rounds.fences import SLACK_MS
from rallypoint.server.shell.coordinator import LATE_MS, PULSE_S
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent

GRACE_MS = 500
OWN_LEASE_MS = 5_000
"""The coordinator's."""
SHORT, LONG = JobSpec(max_nodes=4, lease_ms=1_500), JobSpec(max_nodes=4, lease_ms=15_000)
COMMON = JobSpec(max_nodes=4)


@pytest.mark.parametrize(
    ("interval_ms", "lease_ms", "sessions", "expected"),
    [
        (0, 0, 1, (1_000, 5_000)),
        (0, 0, 1_000, (2_000, 6_000)),
        (200, 0, 1, (200, 5_000)),
        (30_000, 0, 1, (30_000, 90_000)),  # a lease that was not requested grows
        (0, 1_500, 1, (500, 1_500)),  # a requested lease holds
        (0, 60_000, 1, (1_000, 60_000)),
        (5_000, 15_000, 1, (5_000, 15_000)),
        (5_000, 6_000, 1, (2_000, 6_000)),
        (100, 1_500, 50, (100, 1_500)),
        (100, 1_500, 1_000, (2_000, 6_000)),  # no job exceeds the limit of all
        (30_000, 0, 1_000, (30_000, 90_000)),
    ],
)
def test_three_heartbeats_to_a_lease(
    interval_ms: int, lease_ms: int, sessions: int, expected: tuple[int, int]
) -> None:
    """Requested values hold as far as both rules allow."""
    spec = JobSpec(heartbeat_interval_ms=interval_ms, lease_ms=lease_ms)
    timing = Timing()

    assert expected == (
        timing.compute_heartbeat_ms(spec, sessions),
        timing.compute_lease_ms(spec, sessions),
    )


@pytest.mark.parametrize("sessions", [1, 50, 51, 499, 777, 16_384])
def test_all_jobs_together_keep_to_the_limit(sessions: int) -> None:
    """All sessions together send at most 500 heartbeats a second, whatever their jobs request."""
    specs = (JobSpec(heartbeat_interval_ms=100), SHORT, COMMON, LONG)
    timing = Timing()
    rate = sum(
        1000 / timing.compute_heartbeat_ms(specs[number % len(specs)], sessions)
        for number in range(sessions)
    )

    assert rate <= timing.heartbeats_per_s_max + 1e-6


def test_shortest_lease_outlasts_what_a_coordinator_may_miss() -> None:
    """After a third of a lease and an unnoticed stall, a third of the lease is left."""
    unnoticed_ms = PULSE_S * 1000 + LATE_MS

    assert unnoticed_ms <= LEASE_MS_MIN / 3


def start(bench: Bench, job_id: str, spec: JobSpec, count: int) -> tuple[FakeAgent, ...]:
    """Start a round of this many nodes, of a separate job."""
    spec = replace(spec, min_nodes=count, max_nodes=count)
    names = (f"{job_id}{number}" for number in range(count))
    return bench.run_round(*names, job_id=job_id, spec=spec)


def lost(bench: Bench, job_id: str) -> list[str]:
    return [str(departure.name) for departure in bench.job(job_id).lost]


def test_each_job_has_its_lease() -> None:
    """Three nodes fall silent at once; each is lost at the end of its lease, not 1 ms before."""
    bench = Bench()
    jobs = {"short": (SHORT, 1_500), "common": (COMMON, 5_000), "long": (LONG, 15_000)}
    silent = {job_id: start(bench, job_id, spec, 2)[0] for job_id, (spec, _) in jobs.items()}
    bench.advance(1_000)
    since_ms = bench.now_ms
    for agent in silent.values():
        agent.fall_silent()
    for job_id, (_, lease_ms) in jobs.items():
        bench.advance(since_ms + lease_ms - 1 - bench.now_ms)
        assert [] == lost(bench, job_id)

        bench.advance(1)
        assert [f"{job_id}0"] == lost(bench, job_id)
        (departure,) = bench.job(job_id).lost
        assert (since_ms, f"its lease of {lease_ms / 1000:g} s") == (
            departure.at_ms,
            departure.text[-len(f"its lease of {lease_ms / 1000:g} s") :],
        )


def test_report_renews_the_lease_of_its_job() -> None:
    """The lease of a session that comes back on a new connection is the same."""
    bench = Bench()
    a, b = start(bench, "short", SHORT, 2)
    for agent in (a, b):
        agent.fall_silent()
    bench.advance(1_400)
    a.hello(held=a.held_round())
    b.sequence -= 1
    b.start()

    bench.advance(1_499)
    assert [] == lost(bench, "short")

    bench.advance(1)
    assert ["short0", "short1"] == sorted(lost(bench, "short"))


@pytest.mark.parametrize(
    ("spec", "return_ms"), [(SHORT, OWN_LEASE_MS), (COMMON, OWN_LEASE_MS), (LONG, 15_000)]
)
def test_return_on_a_suspected_path(spec: JobSpec, return_ms: int) -> None:
    """A lease, but never less than the coordinator's own: agents pause between their attempts."""
    bench = Bench()
    for agent in start(bench, "job", spec, 4)[:3]:
        agent.break_off()
    waiting = bench.the_wait()
    assert WaitKind.NETWORK_SUSPECTED is waiting.kind
    assert f"a lease of {return_ms / 1000:g} s to return" in waiting.text

    bench.advance(return_ms - 1)
    assert (Phase.RUNNING, []) == (bench.job().phase, lost(bench, "job"))

    bench.advance(1)
    assert 3 == len(lost(bench, "job"))


@pytest.mark.parametrize(
    ("specs", "late_ms", "suspected"),
    [
        ((SHORT,), 750, True),
        ((SHORT,), 749, False),
        ((COMMON, SHORT, LONG), 750, True),  # agents of one job may have given up
        ((COMMON, LONG), 2_500, True),
        ((COMMON, LONG), 2_499, False),
        ((LONG,), 7_500, True),
        ((LONG,), 7_499, False),
        ((), 2_500, True),
    ],
)
def test_stall_counts_by_the_shortest_lease(
    specs: tuple[JobSpec, ...], late_ms: int, suspected: bool
) -> None:
    """After a stall of half a lease the coordinator suspects the network for its own lease."""
    bench = Bench()
    for number, spec in enumerate(specs):
        start(bench, f"job{number}", spec, 2)

    bench.take(inputs.Stalled(late_ms))

    until_ms = bench.now_ms + OWN_LEASE_MS if suspected else 0
    assert until_ms == bench.state.network.suspected_until_ms


def test_job_whose_nodes_are_gone_has_no_lease() -> None:
    """The lease of a job without sessions makes no stall suspicious."""
    bench = Bench()
    for agent in start(bench, "gone", SHORT, 2):
        agent.goodbye()
    start(bench, "job", COMMON, 2)

    bench.take(inputs.Stalled(2_499))

    assert not bench.state.network.is_active(bench.now_ms)


@pytest.mark.parametrize("spec", [SHORT, COMMON, LONG])
def test_fence_counts_from_when_a_silent_node_was_heard(spec: JobSpec) -> None:
    """The wait for a fence contains the job's own lease, and not the coordinator's."""
    fence_after_ms = 20_000
    bench = Bench(replace(spec, max_nodes=2, grow=False, fence_after_ms=fence_after_ms))
    a, b = bench.run_round("a", "b")
    bench.advance(1_000)
    heard_ms = bench.now_ms
    b.fall_silent()
    bench.advance(spec.lease_ms or OWN_LEASE_MS)
    bench.obey(a)

    bench.advance(heard_ms + fence_after_ms + SLACK_MS - bench.now_ms - 1)
    assert (Phase.FORMING, WaitKind.FENCE) == (bench.job().phase, bench.the_wait().kind)

    bench.advance(1)
    assert (Phase.RUNNING, ["a"]) == (bench.job().phase, bench.order())


@pytest.mark.parametrize("spec", [SHORT, COMMON, LONG])
def test_node_that_has_to_stop_may_be_heard_for_its_lease(spec: JobSpec) -> None:
    """A node that comes back with workers of an old round is fenced for a lease and a fence."""
    fence_after_ms = 20_000
    bench = Bench(replace(spec, max_nodes=2, grow=False, fence_after_ms=fence_after_ms))
    a, b = bench.run_round("a", "b")
    b.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a)

    b.hello(held=b.held_round())

    (fence,) = bench.job().fences
    assert bench.now_ms + (spec.lease_ms or OWN_LEASE_MS) + fence_after_ms == fence.until_ms
