"""Agents that return to a coordinator that has started again, with what they know."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.worker import WorkerExit
from support.core.fake_agents import FakeAgent


def come_back(
    agent: FakeAgent,
    state: NodeState = NodeState.STARTED,
    exits: Sequence[WorkerExit] = (),
    acknowledged: int | None = None,
) -> None:
    """Let an agent say Hello with the round that it holds, or ready if it holds none.

    Args:
        agent: which was there before.
        state: of the round that it holds.
        exits: of its workers.
        acknowledged: its latest report of which it knows that it has arrived; None: all have.
    """
    holds = agent.last_round > agent.clean
    held = agent.held_round(state, exits) if holds else None
    assert agent.hello(held=held, acknowledged=acknowledged).refusal is None
    agent.beats = True
