"""What tests of adoption share: agents in a round that the coordinator does not know."""

from __future__ import annotations

from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent

WINDOW_MS = 2_500


SPEC = JobSpec(min_nodes=2, max_nodes=3, max_restarts=3, grow=False, restart_backoff_ms=0)


def orphans(restarts: int = 0) -> tuple[Bench, list[FakeAgent]]:
    """Return a new coordinator in its window, and three agents whose round it does not know."""
    before = Bench(SPEC, coordinator_id="before")
    agents = list(before.run_round("a", "b", "c"))
    for number in range(restarts):
        agents[number % 3].fail()  # not one of them so often that it would be kept out
        before.obey()
    bench = Bench(SPEC, window_ms=WINDOW_MS)
    for agent in agents:
        bench.adopt_agent(agent)
    return bench, agents
