"""Rounds continue when the coordinator starts again from its journal."""

from __future__ import annotations

from rallypoint.server.core.model.desired import DesiredRun
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench

PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=1)


def test_running_round_goes_on() -> None:
    """Members that return keep their round; its start is announced once."""
    bench = Bench(PAIR, durable=True)
    agents = bench.run_round("a", "b")
    events = bench.events()

    bench.restart()
    for agent in agents:
        assert agent.hello(held=agent.held_round()).refusal is None
    bench.advance(60_000)

    assert Phase.RUNNING is bench.job().phase
    assert [1] == [header.number for header in bench.rounds()]
    assert all(isinstance(agent.desired, DesiredRun) for agent in agents)
    assert [NodeState.STARTED] * 2 == [agent.known_node.state for agent in agents]
    assert 1 == events.count("round_started") == bench.events().count("round_started")
