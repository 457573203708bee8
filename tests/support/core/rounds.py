"""Running rounds that many tests begin with."""

from __future__ import annotations

from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent


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
