"""Workers that a stop has not ended are looked at once, and their SIGKILL never waits for that."""

from __future__ import annotations

import pytest

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.desired import DesiredStop
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import next_deadline_ms, step
from support.core.orders import run_order

STOP_MS = 50_000
SIGTERM = 15


class Bench:
    """An agent whose only worker runs, and gets a stop at STOP_MS."""

    def __init__(self, shutdown_timeout_ms: int) -> None:
        order = run_order(world_size=1, local_world_size=1, role_world_size=1)
        self.state = AgentState(
            workers=1, shutdown_timeout_ms=1, coordinator_timeout_ms=600_000, away_since_ms=0
        )
        for one in (
            inputs.PortReserved(20_000),
            inputs.Welcomed(1),
            inputs.DesiredReceived(1, 1, order),
            inputs.WorkerStarted(1, 0, 4_000),
        ):
            self.post(one, 0)
        stop = DesiredStop(1, shutdown_timeout_ms, "a peer failed")
        self.first = self.post(inputs.DesiredReceived(1, 2, stop), STOP_MS)

    def post(self, input: inputs.Input, now_ms: int) -> tuple[effects.Effect, ...]:
        self.state, done = step(self.state, input, now_ms)
        return done

    def tick(self, now_ms: int) -> tuple[effects.Effect, ...]:
        return self.post(inputs.TimePassed(), now_ms)

    def deadline_ms(self) -> int | None:
        """Return how long after the stop the next step is due."""
        due_ms = next_deadline_ms(self.state)
        return None if due_ms is None else due_ms - STOP_MS


@pytest.mark.parametrize(
    ("shutdown_timeout_ms", "look_ms"),
    [
        pytest.param(30_000, 28_000, id="two seconds before the kill"),
        pytest.param(4_000, 2_000, id="half of it is two seconds"),
        pytest.param(1_000, 500, id="workers have half of a short one"),
    ],
)
def test_workers_are_looked_at_once_before_they_are_killed(
    shutdown_timeout_ms: int, look_ms: int
) -> None:
    """The look comes when it is due, not 1 ms earlier, and moves no kill."""
    bench = Bench(shutdown_timeout_ms)

    assert bench.deadline_ms() == look_ms
    assert bench.tick(STOP_MS + look_ms - 1) == ()
    look = effects.LogSurvivors(shutdown_timeout_ms - look_ms)
    assert bench.tick(STOP_MS + look_ms) == (look,)
    assert bench.deadline_ms() == shutdown_timeout_ms
    assert bench.tick(STOP_MS + shutdown_timeout_ms - 1) == ()
    assert bench.tick(STOP_MS + shutdown_timeout_ms) == (effects.Sweep(1),)
    assert bench.deadline_ms() is None


@pytest.mark.parametrize("shutdown_timeout_ms", [0, 1])
def test_stop_without_time_has_no_look(shutdown_timeout_ms: int) -> None:
    """SIGKILL comes as early as it can."""
    bench = Bench(shutdown_timeout_ms)
    done = (*bench.first, *bench.tick(STOP_MS + shutdown_timeout_ms))

    assert done == (effects.SignalWorkers(SIGTERM), effects.Sweep(1))


def test_late_agent_has_less_time_for_the_look() -> None:
    """An agent that stood still looks as long as it can; SIGKILL comes in time."""
    bench = Bench(30_000)

    assert bench.tick(STOP_MS + 29_000) == (effects.LogSurvivors(1_000),)
    assert bench.tick(STOP_MS + 30_000) == (effects.Sweep(1),)


def test_agent_that_wakes_after_the_kill_is_due_kills() -> None:
    """No look delays a kill that is overdue."""
    assert Bench(30_000).tick(STOP_MS + 30_000) == (effects.Sweep(1),)


def test_workers_that_obey_are_not_looked_at() -> None:
    """The sweep follows their end at once."""
    bench = Bench(30_000)
    ended = bench.post(inputs.WorkerEnded(1, 0, None, SIGTERM, None, ""), STOP_MS + 5)

    assert [one for one in ended if not isinstance(one, effects.SendReports)] == [effects.Sweep(1)]
    assert bench.deadline_ms() is None
