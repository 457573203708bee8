"""A coordinator on a journal that is older than what its agents know: a backup was restored."""

from __future__ import annotations

import pytest

from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, stopped_round

PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=3, restart_backoff_ms=0)


def two_rounds(bench: Bench) -> tuple[tuple[FakeAgent, ...], int]:
    """Run two rounds; return the agents, and how many records there were in the first one."""
    agents = bench.run_round("a", "b")
    count = len(bench.records)
    agents[1].fail()
    bench.obey()
    bench.advance(10_000)
    bench.obey()
    assert [1, 2] == [header.number for header in bench.rounds()]
    return agents, count


def test_round_that_the_journal_does_not_know_is_stopped() -> None:
    """And a higher one begins, although the journal has a running round with the same members."""
    bench = Bench(PAIR, durable=True)
    agents, count = two_rounds(bench)

    bench.restart(journal=bench.records[:count])
    for agent in agents:
        assert agent.hello(held=agent.held_round()).refusal is None
        assert stopped_round(agent) == 2
    bench.obey()
    bench.advance(10_000)
    bench.obey()

    assert Phase.RUNNING is bench.job().phase
    assert 3 == bench.job().round_number
    assert [3, 3] == [agent.started for agent in agents]
    bench.check_journal()


def test_agents_that_run_nothing_begin_a_higher_round() -> None:
    """An agent starts no round twice, so the number of the journal's next round is not enough."""
    bench = Bench(PAIR, durable=True)
    agents, count = two_rounds(bench)
    for agent in agents:
        agent.clean = 2

    bench.restart(journal=bench.records[:count])
    for agent in agents:
        assert agent.hello().refusal is None
    bench.advance(10_000)
    bench.obey()

    assert Phase.RUNNING is bench.job().phase
    assert [3, 3] == [agent.started for agent in agents]
    bench.check_journal()


@pytest.mark.parametrize("number", [0, 1])
def test_node_that_is_not_ahead_keeps_its_place(number: int) -> None:
    """An agent that has not got the order of its round yet, and one that runs it."""
    bench = Bench(PAIR, durable=True)
    agents = bench.run_round("a", "b")

    bench.restart()
    for agent in agents:
        assert agent.hello(held=agent.held_round() if number else None).refusal is None
    assert [node.member for node in bench.state.nodes.values()] == [True, True]
