"""The agent's core when all workers have exited with 0 and no coordinator answers."""

from __future__ import annotations

import pytest

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.leaving.away import ALONE_MS
from rallypoint.agent.core.reports import GoodbyeKind
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import next_deadline_ms, step
from support.core.orders import run_order

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
