"""A durable coordinator that starts again while the first window of its journal may be open."""

from __future__ import annotations

from rallypoint.server.core.memory.replay import replay, snapshot
from rallypoint.server.core.memory.restore import ADOPTION_MS
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec
from support.core.adoption import WINDOW_MS
from support.core.coordinator import Bench
from support.core.fake_agents import stopped_round

PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=3, restart_backoff_ms=0)


def test_round_that_the_journal_has_ended_is_not_adopted() -> None:
    """The round was adopted, lost a member and settled. The member comes back with it."""
    before = Bench(PAIR, coordinator_id="before")
    agents = before.run_round("a", "b")
    bench = Bench(PAIR, window_ms=WINDOW_MS, durable=True)
    for agent in agents:
        bench.adopt_agent(agent).hello(held=agent.held_round())
    bench.advance(WINDOW_MS)
    assert Phase.RUNNING is bench.job().phase
    survivor, lost = agents
    old_round = lost.held_round()
    lost.break_off()
    bench.advance(600)
    bench.obey(survivor)
    assert Phase.FORMING is bench.job().phase
    reformed = bench.job().counts

    bench.restart()
    count = len(bench.events())
    lost.hello(held=old_round)
    survivor.hello()
    bench.advance(WINDOW_MS)

    assert {"round_adopted", "round_found_incomplete"}.isdisjoint(bench.events()[count:])
    assert old_round.header.number == stopped_round(lost)
    assert reformed == bench.job().counts
    bench.obey()
    assert (Phase.RUNNING, old_round.header.number + 1) == (
        bench.job().phase,
        bench.job().round_number,
    )


def test_window_that_no_process_has_lived_through_begins_again() -> None:
    """Two processes die in it, one after the other; then members of a run come."""
    before = Bench(PAIR, coordinator_id="before")
    agents = before.run_round("a", "b")
    bench = Bench(PAIR, window_ms=WINDOW_MS, durable=True)
    bench.advance(WINDOW_MS // 2)

    bench.restart()
    bench.restart()
    for agent in agents:
        bench.adopt_agent(agent).hello(held=agent.held_round())
    bench.advance(WINDOW_MS)

    assert Phase.RUNNING is bench.job().phase
    assert [1] == [header.number for header in bench.rounds()]
    assert "round_adopted" in bench.events()


def test_window_that_is_over_does_not_begin_again() -> None:
    """Nor after a second start, or a compaction."""
    bench = Bench(PAIR, window_ms=WINDOW_MS, durable=True)
    bench.advance(WINDOW_MS // 2)
    bench.restart()
    bench.advance(WINDOW_MS + ADOPTION_MS)

    bench.restart(journal=snapshot(replay(bench.records)))

    assert 0 == bench.state.window_until_ms
    bench.restart()
    assert 0 == bench.state.window_until_ms
