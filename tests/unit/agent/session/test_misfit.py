"""An order that does not fit the node is refused where it arrives."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from rallypoint.agent.agent import Agent
from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import RunOrder
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import round_pb2
from rallypoint.wire.access import PLAIN


class Workers:
    """Stands for the workers of a node: keeps what is started."""

    is_starting = False

    def __init__(self) -> None:
        self.orders: list[RunOrder] = []

    def start(self, order: RunOrder) -> None:
        self.orders.append(order)


def node_with_two() -> tuple[Agent, Workers]:
    """Return a connected agent with two workers and a port."""
    settings: Any = SimpleNamespace(
        workers=2,
        shutdown_timeout_ms=30_000,
        drain_ms=0,
        drain_signal=None,
        coordinator_timeout_ms=60_000,
        outcome_timeout_ms=60_000,
        fence_ms=0,
        coordinator="127.0.0.1:1",
        address=None,
        job_id="job",
        node_name="n0",
        is_standalone=False,
        limits_threads=False,
        patience_ms=0,
        incarnation="0" * 32,
        access=PLAIN,
        keeper=None,
    )
    unused: Any = None
    now_ms = time.monotonic_ns() // 1_000_000
    callbacks: Any = SimpleNamespace(events=None, stepped=None)
    agent, workers = Agent(settings, callbacks, unused, now_ms), Workers()
    link: Any = SimpleNamespace(wake=lambda: None)
    agent.link, agent.supervisor = link, workers  # type: ignore[assignment]
    agent.post(inputs.PortReserved(30_000))
    agent.post(inputs.Welcomed(1))
    return agent, workers


@pytest.mark.parametrize(("size", "starts"), [(1, 0), (2, 1), (3, 0)])
async def test_order_with_another_number_of_workers_is_refused(size: int, starts: int) -> None:
    """It starts nothing, and does not end the agent as a bug would."""
    agent, workers = node_with_two()
    order = agent_pb2.RunOrder(
        header=round_pb2.RoundHeader(number=1, run=1, world_size=size, group_world_size=1),
        assignment=round_pb2.Assignment(local_world_size=size),
    )

    desired = agent_pb2.DesiredState(revision=1, run=order)
    agent.on_message(agent_pb2.SessionResponse(epoch=1, desired=desired))
    for rank in range(size):
        agent.post(inputs.WorkerStarted(1, rank, 100 + rank))

    assert len(workers.orders) == starts
    assert (agent.exit_code, agent.state.ending) == (None, None)
    agent.stop_timers()
