"""An agent that nobody answers kills its workers; what it took for its own doing is no failure."""

from __future__ import annotations

from rallypoint.agent.core import inputs
from rallypoint.agent.core.model import (
    AgentState,
    DesiredRun,
    DesiredStop,
    ExitedReport,
    LocalExit,
    ReadyReport,
    Stage,
    SucceededReport,
)
from rallypoint.agent.core.step import next_deadline_ms, step
from support.orders import run_order

SIGTERM, SIGKILL = 15, 9
GRACE_MS = 2_000
FENCE_MS = 10_000
FALLS_MS = FENCE_MS - GRACE_MS

ORDER = run_order(world_size=1, epoch=5, local_world_size=1, role_world_size=1)


class Bench:
    """One agent's core whose effects are only collected."""

    def __init__(self, fence_ms: int = FENCE_MS) -> None:
        self.state = AgentState(
            workers=1,
            grace_ms=GRACE_MS,
            coordinator_timeout_ms=600_000,
            away_since_ms=0,
            fence_ms=fence_ms,
        )
        self.effects: list[inputs.Effect] = []

    def take(self, said: inputs.Input, now_ms: int = 0) -> tuple[inputs.Effect, ...]:
        self.state, effects = step(self.state, said, now_ms)
        self.effects.extend(effects)
        return effects

    def tick(self, now_ms: int) -> tuple[inputs.Effect, ...]:
        return self.take(inputs.TimePassed(), now_ms)

    def welcome(self) -> None:
        """Let a coordinator answer the Hello that was sent at 0 ms."""
        self.take(inputs.PortReserved(20_000))
        self.take(inputs.Welcomed(5))
        self.take(inputs.Confirmed(0))

    @property
    def stage(self) -> Stage:
        assert self.state.held is not None
        return self.state.held.stage

    def exits(self) -> list[LocalExit]:
        found = (
            report.worker.exit for report in self.state.reports if isinstance(report, ExitedReport)
        )
        return [exit for exit in found if exit is not None]


def running(fence_ms: int = FENCE_MS) -> Bench:
    """Return an agent whose only worker runs; its Hello was sent at 0 ms and answered."""
    bench = Bench(fence_ms)
    bench.welcome()
    bench.take(inputs.DesiredCame(5, 1, DesiredRun(ORDER)))
    bench.take(inputs.WorkerStarted(1, 0, 4_000))
    assert bench.stage is Stage.RUNNING
    return bench


def ended(code: int | None, signal: int | None = None) -> inputs.WorkerEnded:
    return inputs.WorkerEnded(1, 0, code, signal, None, "")


def test_workers_are_told_a_grace_before_the_fence() -> None:
    """TERM comes then and not 1 ms before, and whatever is left is killed when it ends."""
    bench = running()

    assert FALLS_MS == next_deadline_ms(bench.state)
    assert () == bench.tick(FALLS_MS - 1)
    assert (inputs.FenceFell(1, FALLS_MS), inputs.SignalWorkers(SIGTERM)) == bench.tick(FALLS_MS)
    assert FENCE_MS == next_deadline_ms(bench.state)
    assert () == bench.tick(FENCE_MS - 1)
    assert (inputs.Sweep(1),) == bench.tick(FENCE_MS)


def test_without_a_fence_workers_run_on() -> None:
    """The default is that a node nobody answers goes on."""
    bench = running(fence_ms=0)

    assert None is next_deadline_ms(bench.state)
    assert () == bench.tick(1_000 * FENCE_MS)
    assert not any(isinstance(effect, inputs.ArmFence) for effect in bench.effects)


def test_time_counts_from_the_sending() -> None:
    """An answer moves the fence to when the heartbeat was sent, and never back."""
    bench = running()
    armed = bench.take(inputs.Confirmed(3_000), 7_000)
    assert (inputs.ArmFence(3_000 + FENCE_MS),) == armed

    bench.take(inputs.Confirmed(2_000), 7_100)
    assert 3_000 + FALLS_MS == next_deadline_ms(bench.state)


def test_stop_of_another_kind_ends_with_the_fence() -> None:
    """A grace that would last beyond the fence is cut short."""
    bench = running()
    bench.take(inputs.DesiredCame(5, 2, DesiredStop(1, 60_000, "a peer failed")), 1)

    assert FENCE_MS == next_deadline_ms(bench.state)
    assert (inputs.Sweep(1),) == bench.tick(FENCE_MS)


def test_fenced_node_becomes_ready_and_does_not_start_again() -> None:
    """Its worker's end is its own doing; the order that it still has is not begun again."""
    bench = running()
    bench.take(inputs.Disconnected(), 5_000)
    bench.tick(FALLS_MS)
    bench.take(ended(None, SIGTERM), FALLS_MS + 5)
    bench.take(inputs.Swept(1), FALLS_MS + 10)
    bench.take(inputs.PortReserved(20_001), FALLS_MS + 11)

    assert [True] == [exit.signalled_first for exit in bench.exits()]
    assert ReadyReport(1, 20_001) == bench.state.reports[-1]
    bench.take(inputs.Welcomed(5), 20_000)
    bench.take(inputs.Confirmed(19_900), 20_000)
    assert None is bench.state.held


def test_worker_that_the_helper_killed_is_no_failure() -> None:
    """An agent that stood still learns of it before anything else tells it the time."""
    bench = running()
    bench.take(ended(None, SIGKILL), 60_000)

    assert [True] == [exit.signalled_first for exit in bench.exits()]
    assert bench.stage is Stage.SWEEPING


def test_late_answer_does_not_save_what_was_killed() -> None:
    """An answer read after the fence counts for what comes, not for what ran."""
    bench = running()
    bench.take(inputs.Confirmed(9_000), FENCE_MS)
    bench.take(ended(None, SIGKILL), FENCE_MS + 1)

    assert [True] == [exit.signalled_first for exit in bench.exits()]


def test_answer_in_the_last_moment_counts() -> None:
    """One that is read before the fence, however late the agent is, keeps the workers."""
    bench = running()
    bench.take(inputs.Confirmed(9_000), FENCE_MS - 1)

    assert bench.stage is Stage.RUNNING
    assert 9_000 + FALLS_MS == next_deadline_ms(bench.state)


def test_round_does_not_start_behind_a_fallen_fence() -> None:
    """An order that comes late starts nothing before somebody has answered again."""
    bench = Bench()
    bench.welcome()
    bench.take(inputs.DesiredCame(5, 1, DesiredRun(ORDER)), FALLS_MS)
    assert None is bench.state.held

    bench.take(inputs.Confirmed(FALLS_MS), FALLS_MS + 50)
    assert inputs.StartWorkers(ORDER) == bench.effects[-1]


def test_success_is_kept() -> None:
    """A node whose workers have all ended with 0 has nothing to kill, and tells it later."""
    bench = running()
    bench.take(ended(0), 1_000)
    bench.tick(FENCE_MS)

    assert bench.stage is Stage.SUCCEEDED
    assert SucceededReport(1) == bench.state.reports[-1]


def test_nothing_starts_before_the_hello_is_confirmed() -> None:
    """The order comes with the answer; whether it may still be followed, the time of the Hello."""
    for now_ms, is_started in ((FALLS_MS - 1, True), (FALLS_MS, False)):
        bench = Bench()
        bench.take(inputs.PortReserved(20_000), now_ms)
        bench.take(inputs.Welcomed(5), now_ms)
        bench.take(inputs.DesiredCame(5, 1, DesiredRun(ORDER)), now_ms)
        assert inputs.StartWorkers(ORDER) not in bench.effects
        bench.take(inputs.Confirmed(0), now_ms)

        assert (inputs.StartWorkers(ORDER) in bench.effects) == is_started
