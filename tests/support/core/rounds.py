"""Running rounds that many tests begin with."""

from __future__ import annotations

from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, stop_reason


def pair(max_restarts: int = 3, **facts: object) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a bench with a started round of two nodes."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2, max_restarts=max_restarts))
    a, b = bench.run_round("a", "b", **facts)
    return bench, a, b


def trio(max_restarts: int = 3) -> tuple[Bench, FakeAgent, FakeAgent, FakeAgent]:
    """Return a bench with a started round of three nodes, of which two suffice."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3, max_restarts=max_restarts, grow=False))
    a, b, c = bench.run_round("a", "b", "c")
    return bench, a, b, c


def growing() -> tuple[Bench, FakeAgent, FakeAgent, FakeAgent]:
    """Return a bench whose round of two nodes is being stopped for a third."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3, max_restarts=3))
    a, b = bench.run_round("a", "b")
    bench.advance(60_000)
    (c,) = bench.join("c")
    bench.advance(bench.spec.settle_time_ms)
    assert RoundReason.GROWTH is stop_reason(a)
    return bench, a, b, c
