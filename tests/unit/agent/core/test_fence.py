"""An agent that gets no answer, from its coordinator or its helper, or that has a bug."""

from __future__ import annotations

import pytest

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.desired import DesiredStop
from rallypoint.agent.core.held_round import LOOK_MS_MAX, LocalExit, Stage
from rallypoint.agent.core.leaving.away import ALONE_MS
from rallypoint.agent.core.reports import (
    BlockedReport,
    ExitedReport,
    GoodbyeKind,
    GoodbyeReport,
    LeavingReport,
    ReadyReport,
    SucceededReport,
)
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import next_deadline_ms, step
from support.core.orders import run_order

# An agent that gets no answer kills its workers; exits that it caused itself are no failures.

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
    assert FENCE_MS - 1_000 == next_deadline_ms(bench.state)
    assert (effects.LogSurvivors(1_000),) == bench.tick(FENCE_MS - 1_000)
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

    assert FENCE_MS - LOOK_MS_MAX == next_deadline_ms(bench.state)
    assert (effects.LogSurvivors(LOOK_MS_MAX),) == bench.tick(FENCE_MS - LOOK_MS_MAX)
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


# --- The agent's core when all workers have exited with 0 and no coordinator answers ---

JOIN_MS, OUTCOME_MS = 600_000, 300_000


class Node:
    """An agent with two workers in a round of so many nodes."""

    def __init__(self, nodes: int, outcome_ms: int = OUTCOME_MS) -> None:
        self.now_ms = 0
        self.done: list[effects.Effect] = []
        self.state = AgentState(2, 1_000, JOIN_MS, 0, outcome_timeout_ms=outcome_ms)
        order = run_order(world_size=2 * nodes, group_world_size=nodes, role_world_size=2 * nodes)
        self.post(inputs.PortReserved(20_001), inputs.Welcomed(1))
        self.post(inputs.DesiredReceived(1, 1, order))
        self.post(inputs.WorkerStarted(1, 0, 100), inputs.WorkerStarted(1, 1, 101))

    def post(self, *posted: inputs.Input) -> None:
        for one in posted:
            self.state, done = step(self.state, one, self.now_ms)
            self.done += done

    def end_workers(self, *codes: int) -> None:
        for rank, code in enumerate(codes):
            self.post(inputs.WorkerEnded(1, rank, code, None, None, ""))

    def wait(self, ms: int) -> None:
        """Let time pass; what is stopped is gone at once."""
        self.now_ms += ms
        due_ms = next_deadline_ms(self.state)
        if due_ms is not None and due_ms <= self.now_ms:
            self.post(inputs.TimePassed())
            if self.state.held is not None and self.state.ending is not None:
                self.post(inputs.Swept(self.state.sweep_token), inputs.PortReserved(20_002))

    def exits(self) -> list[tuple[int, str]]:
        return [(one.code, one.text) for one in self.done if isinstance(one, effects.Exit)]

    def awaited(self) -> list[int]:
        return [one.within_ms for one in self.done if isinstance(one, effects.LogOutcomeAwaited)]


@pytest.mark.parametrize("is_away_first", [True, False])
def test_unknown_outcome_of_several_nodes(is_away_first: bool) -> None:
    """The agent says what it waits for and how long; then that its own workers have succeeded."""
    node = Node(nodes=2)
    if is_away_first:
        node.post(inputs.Disconnected())
    node.end_workers(0, 0)
    if not is_away_first:
        node.post(inputs.Disconnected())
    assert [OUTCOME_MS] == node.awaited()

    node.wait(OUTCOME_MS - 1)
    assert [] == node.exits()
    node.wait(1)

    ((code, text),) = node.exits()
    expected = "all workers here exited with 0, but the job's outcome is unknown: "
    assert (75, f"{expected}no coordinator answered for 300 s") == (code, text)
    assert node.state.ending is not None
    assert GoodbyeKind.ERROR is node.state.ending.kind


def test_success_of_a_single_node_is_the_outcome() -> None:
    """A node that ran the round alone exits with 0 soon, whether a coordinator is there or not."""
    node = Node(nodes=1)
    node.post(inputs.Disconnected())
    node.end_workers(0, 0)
    assert [ALONE_MS] == node.awaited()

    node.wait(ALONE_MS)

    assert [(0, "all workers exited with 0; no coordinator answered for 10 s")] == node.exits()


def test_short_outcome_timeout_holds_for_a_single_node() -> None:
    """A node that was alone never waits longer than the user allows."""
    node = Node(nodes=1, outcome_ms=2_000)
    node.post(inputs.Disconnected())
    node.end_workers(0, 0)

    node.wait(2_000)

    assert [0] == [code for code, _ in node.exits()]


def test_agent_that_waits_to_begin_waits_longer() -> None:
    """Without workers it waits for the coordinator timeout, and says nothing of an outcome."""
    node = Node(nodes=2)
    node.end_workers(1, 0)
    node.post(inputs.Disconnected())

    node.wait(OUTCOME_MS)
    assert [] == node.exits()
    node.wait(JOIN_MS)

    assert [(75, "no coordinator answered for 600 s")] == node.exits()
    assert [] == node.awaited()


def test_coordinator_that_returns_in_time_decides() -> None:
    """The agent reports its success to the coordinator that returns, and waits for the answer."""
    node = Node(nodes=2)
    node.post(inputs.Disconnected())
    node.end_workers(0, 0)
    node.wait(OUTCOME_MS - 1)
    node.post(inputs.Welcomed(2))
    node.wait(OUTCOME_MS)

    assert [] == node.exits()


@pytest.mark.parametrize(
    ("nodes", "ended", "expected"),
    [
        (
            2,
            True,
            (75, "all workers here exited with 0, but the job's outcome is unknown: refused"),
        ),
        (1, True, (0, "all workers exited with 0; refused")),
        (2, False, (1, "refused")),
    ],
)
def test_refusal_by_another_coordinator(nodes: int, ended: bool, expected: tuple[int, str]) -> None:
    """It cannot tell the outcome; that is no failure of a node whose workers have succeeded."""
    node = Node(nodes=nodes)
    node.post(inputs.Disconnected())
    if ended:
        node.end_workers(0, 0)
    node.post(inputs.Dismissed(1, "refused"))
    if not ended:
        node.end_workers(-15, -15)
    node.post(inputs.Swept(node.state.sweep_token))

    assert [expected] == node.exits()


# --- What the core does when the agent has found a bug in itself ---

FAILED = inputs.AgentFailed("ValueError: bad")
TEXT = "internal error: ValueError: bad"
EXIT_SOFTWARE = 70
RUNNING = (
    inputs.PortReserved(30_000),
    inputs.Welcomed(1),
    inputs.DesiredReceived(1, 1, run_order()),
    inputs.WorkerStarted(1, 0, 4_000),
    inputs.WorkerStarted(1, 1, 4_001),
)


def after(*happened: inputs.Input) -> tuple[AgentState, list[effects.Effect]]:
    """Return the state after these inputs, and the effects of the last one."""
    state = AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=0
    )
    done: tuple[effects.Effect, ...] = ()
    for one in happened:
        state, done = step(state, one, 1_000)
    return state, [one for one in done if not isinstance(one, effects.SendReports)]


def test_bug_stops_the_workers() -> None:
    """They get SIGTERM and the shutdown timeout, and the coordinator learns why at once."""
    state, done = after(*RUNNING, FAILED)

    assert done == [effects.SignalWorkers(15)]
    assert state.reports[-1] == LeavingReport(1, TEXT)
    assert state.held is not None and state.held.kill_ms == 31_000


def test_bug_ends_the_agent_without_workers() -> None:
    """It says Goodbye and exits at once."""
    state, done = after(*RUNNING[:2], FAILED)

    assert done == [effects.Exit(EXIT_SOFTWARE, TEXT)]
    assert state.reports[-1] == GoodbyeReport(GoodbyeKind.ERROR, TEXT)


def test_bug_does_not_change_a_decided_end() -> None:
    """An agent that is ending keeps its reason and its exit code."""
    before, _ = after(*RUNNING, inputs.SignalReceived(2))
    state, done = after(*RUNNING, inputs.SignalReceived(2), FAILED)

    assert done == []
    assert state == before


# --- A helper that does not answer: a stop says that it waits for it ---

STOP = inputs.DesiredReceived(1, 2, DesiredStop(1, 30_000, "why"))
SILENT = inputs.HelperSilent(7)
ANSWERED = inputs.HelperAnswered()
SAID = BlockedReport(1, (7,), "its helper process 7 does not answer")


def blocked(*happened: inputs.Input) -> list[BlockedReport]:
    """Return what an agent reports that keeps it."""
    state = AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=0
    )
    for one in happened:
        state, _ = step(state, one, 1_000)
    return [report for report in state.reports if isinstance(report, BlockedReport)]


def test_stop_says_that_it_waits_for_the_helper() -> None:
    """Whether the silence begins before the stop or after it."""
    assert blocked(*RUNNING, SILENT, STOP) == [SAID]
    assert blocked(*RUNNING, STOP, SILENT) == [SAID]


def test_silence_during_a_round_is_no_news() -> None:
    """The workers run; nothing waits for the helper."""
    assert blocked(*RUNNING, SILENT) == []


def test_helper_that_answers_again_keeps_nothing() -> None:
    """A later stop is like any other."""
    assert blocked(*RUNNING, SILENT, ANSWERED, STOP) == []


def test_stop_says_what_it_waits_for_once_the_helper_answers() -> None:
    """Its silence is no reason any more; a node without processes waits for none."""
    ended = BlockedReport(1, (), "its workers have not ended")
    assert blocked(*RUNNING, STOP, SILENT, ANSWERED) == [SAID, ended]
    assert blocked(*RUNNING, STOP, ANSWERED) == []
    ends = [inputs.WorkerEnded(1, rank, 0, None, None, "") for rank in range(2)]
    assert blocked(*RUNNING, STOP, SILENT, *ends, inputs.Swept(1), ANSWERED) == [SAID]
