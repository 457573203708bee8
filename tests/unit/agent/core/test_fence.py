"""An agent that gets no answer kills its workers; exits that it caused itself are no failures."""

from __future__ import annotations

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.desired import DesiredStop
from rallypoint.agent.core.held_round import LocalExit, Stage
from rallypoint.agent.core.reports import ExitedReport, ReadyReport, SucceededReport
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import next_deadline_ms, step
from support.core.orders import run_order

SIGTERM, SIGKILL = 15, 9
SHUTDOWN_TIMEOUT_MS = 2_000
FENCE_MS = 10_000
STOP_MS = FENCE_MS - SHUTDOWN_TIMEOUT_MS

ORDER = run_order(world_size=1, epoch=5, local_world_size=1, role_world_size=1)


class Bench:
    """One agent's core whose effects are only collected."""

    def __init__(self, fence_ms: int = FENCE_MS) -> None:
        self.state = AgentState(
            workers=1,
            shutdown_timeout_ms=SHUTDOWN_TIMEOUT_MS,
            coordinator_timeout_ms=600_000,
            away_since_ms=0,
            fence_ms=fence_ms,
        )
        self.effects: list[effects.Effect] = []

    def post(self, input: inputs.Input, now_ms: int = 0) -> tuple[effects.Effect, ...]:
        self.state, done = step(self.state, input, now_ms)
        self.effects.extend(done)
        return done

    def tick(self, now_ms: int) -> tuple[effects.Effect, ...]:
        return self.post(inputs.TimePassed(), now_ms)

    def welcome(self) -> None:
        """Let a coordinator answer the Hello that was sent at 0 ms."""
        self.post(inputs.PortReserved(20_000))
        self.post(inputs.Welcomed(5))
        self.post(inputs.Confirmed(0))

    @property
    def stage(self) -> Stage:
        assert self.state.held is not None
        return self.state.held.stage

    def exits(self) -> list[LocalExit]:
        exits = (
            report.worker.exit for report in self.state.reports if isinstance(report, ExitedReport)
        )
        return [exit for exit in exits if exit is not None]


def running(fence_ms: int = FENCE_MS) -> Bench:
    """Return an agent whose only worker runs; its Hello was sent at 0 ms and answered."""
    bench = Bench(fence_ms)
    bench.welcome()
    bench.post(inputs.DesiredReceived(5, 1, ORDER))
    bench.post(inputs.WorkerStarted(1, 0, 4_000))
    assert bench.stage is Stage.RUNNING
    return bench


def ended(
    code: int | None, signal: int | None = None, signalled_ms: int | None = None
) -> inputs.WorkerEnded:
    return inputs.WorkerEnded(1, 0, code, signal, None, "", signalled_ms=signalled_ms)


def test_workers_are_stopped_a_shutdown_timeout_before_the_fence() -> None:
    """SIGTERM comes then and not 1 ms earlier; whatever is left is killed at the fence."""
    bench = running()

    assert STOP_MS == next_deadline_ms(bench.state)
    assert () == bench.tick(STOP_MS - 1)
    assert (effects.LogFence(1, STOP_MS), effects.SignalWorkers(SIGTERM)) == bench.tick(STOP_MS)
    assert FENCE_MS == next_deadline_ms(bench.state)
    assert () == bench.tick(FENCE_MS - 1)
    assert (effects.Sweep(1),) == bench.tick(FENCE_MS)


def test_without_a_fence_workers_run_on() -> None:
    """By default, workers run on without an answer from the coordinator."""
    bench = running(fence_ms=0)

    assert None is next_deadline_ms(bench.state)
    assert () == bench.tick(1_000 * FENCE_MS)
    assert not any(isinstance(effect, effects.ArmFence) for effect in bench.effects)


def test_time_counts_from_the_sending() -> None:
    """An answer moves the fence by the time when the heartbeat was sent, and never back."""
    bench = running()
    armed = bench.post(inputs.Confirmed(3_000), 7_000)
    assert (effects.ArmFence(3_000 + FENCE_MS),) == armed

    bench.post(inputs.Confirmed(2_000), 7_100)
    assert 3_000 + STOP_MS == next_deadline_ms(bench.state)


def test_stop_of_another_kind_ends_with_the_fence() -> None:
    """A shutdown timeout that would last beyond the fence ends at the fence."""
    bench = running()
    bench.post(inputs.DesiredReceived(5, 2, DesiredStop(1, 60_000, "a peer failed")), 1)

    assert FENCE_MS == next_deadline_ms(bench.state)
    assert (effects.Sweep(1),) == bench.tick(FENCE_MS)


def test_fenced_node_becomes_ready_and_does_not_start_again() -> None:
    """The agent ended its worker itself, and it does not start the same run again."""
    bench = running()
    bench.post(inputs.Disconnected(), 5_000)
    bench.tick(STOP_MS)
    bench.post(ended(None, SIGTERM, STOP_MS), STOP_MS + 5)
    bench.post(inputs.Swept(1), STOP_MS + 10)
    bench.post(inputs.PortReserved(20_001), STOP_MS + 11)

    assert [True] == [exit.signalled_first for exit in bench.exits()]
    assert ReadyReport(1, 20_001) == bench.state.reports[-1]
    bench.post(inputs.Welcomed(5), 20_000)
    bench.post(inputs.Confirmed(19_900), 20_000)
    assert None is bench.state.held


def test_worker_that_the_helper_killed_is_no_failure() -> None:
    """A suspended agent learns of the exit before any other input brings it the time."""
    bench = running()
    bench.post(ended(None, SIGKILL, FENCE_MS), 60_000)

    assert [True] == [exit.signalled_first for exit in bench.exits()]
    assert bench.stage is Stage.SWEEPING


def test_late_answer_does_not_excuse_what_was_killed() -> None:
    """An answer that is read after the fence counts for the future only."""
    bench = running()
    bench.post(inputs.Confirmed(9_000), FENCE_MS)
    bench.post(ended(None, SIGKILL, FENCE_MS), FENCE_MS + 1)

    assert [True] == [exit.signalled_first for exit in bench.exits()]


def test_answer_in_the_last_moment_counts() -> None:
    """An answer that is read before the fence keeps the workers, however late the agent is."""
    bench = running()
    bench.post(inputs.Confirmed(9_000), FENCE_MS - 1)

    assert bench.stage is Stage.RUNNING
    assert 9_000 + STOP_MS == next_deadline_ms(bench.state)


def test_round_does_not_start_after_the_fence() -> None:
    """A run that arrives late does not start before the next confirmation."""
    bench = Bench()
    bench.welcome()
    bench.post(inputs.DesiredReceived(5, 1, ORDER), STOP_MS)
    assert None is bench.state.held

    bench.post(inputs.Confirmed(STOP_MS), STOP_MS + 50)
    assert effects.StartWorkers(ORDER) == bench.effects[-1]


def test_success_is_kept() -> None:
    """A node whose workers all exited with 0 has nothing to kill, and reports the success later."""
    bench = running()
    bench.post(ended(0), 1_000)
    bench.tick(FENCE_MS)

    assert bench.stage is Stage.SUCCEEDED
    assert SucceededReport(1) == bench.state.reports[-1]


def test_nothing_starts_before_the_hello_is_confirmed() -> None:
    """A run comes with the answer; the time of the Hello decides whether it may start."""
    for now_ms, is_started in ((STOP_MS - 1, True), (STOP_MS, False)):
        bench = Bench()
        bench.post(inputs.PortReserved(20_000), now_ms)
        bench.post(inputs.Welcomed(5), now_ms)
        bench.post(inputs.DesiredReceived(5, 1, ORDER), now_ms)
        assert effects.StartWorkers(ORDER) not in bench.effects
        bench.post(inputs.Confirmed(0), now_ms)

        assert (effects.StartWorkers(ORDER) in bench.effects) == is_started
