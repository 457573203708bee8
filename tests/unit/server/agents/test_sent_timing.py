"""Heartbeats and leases on their way: from an agent's Hello to what its stream and readers see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rallypoint.server.access.tokens import WorkerTokens
from rallypoint.server.agents.hello import to_hello
from rallypoint.server.agents.outbox import Outbox, Outboxes
from rallypoint.server.agents.service import AgentService
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.server.core.messages.effects import Welcome
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state.state import State
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration, to_ms
from support.core.fake_agents import identity

SESSION = "0" * 32


def taken(**asked_ms: int) -> JobSpec:
    """Return what becomes of a specification with these durations, in ms."""
    spec = job_pb2.JobSpec(min_nodes=1, max_nodes=1)
    for name, ms in asked_ms.items():
        getattr(spec, name).CopyFrom(to_duration(ms))
    hello = agent_pb2.Hello(
        protocol_version=1,
        job_id="job",
        node_name="a",
        address="10.0.0.1",
        local_world_size=1,
        ready=agent_pb2.Ready(master_port=20_000),
        spec=spec,
    )
    envelope = agent_pb2.SessionRequest(session_id=SESSION, connection=1, hello=hello)
    return to_hello(envelope, clock_ms=0).identity.spec


@pytest.mark.parametrize(
    ("asked_ms", "path", "problem"),
    [
        ({"heartbeat_interval": 99}, "heartbeat_interval", "between 0.1 s and 300 s"),
        ({"heartbeat_interval": 0}, "heartbeat_interval", "between 0.1 s and 300 s"),
        ({"heartbeat_interval": 300_001}, "heartbeat_interval", "between 0.1 s and 300 s"),
        ({"lease": 1_499}, "lease", "between 1.5 s and 3600 s"),
        ({"lease": 3_600_001}, "lease", "between 1.5 s and 3600 s"),
        (
            {"shutdown_timeout": 0, "fence_after": 2_999},
            "fence_after",
            "3 s longer than the shutdown timeout",
        ),
        (
            {"shutdown_timeout": 1_000, "fence_after": 6_999, "heartbeat_interval": 2_000},
            "fence_after",
            "6 s longer than the shutdown timeout",
        ),
    ],
)
def test_what_cannot_be_taken_is_named(asked_ms: dict[str, int], path: str, problem: str) -> None:
    """A fence that is too short for three heartbeats too."""
    with pytest.raises(InvalidMessage) as caught:
        taken(**asked_ms)

    assert f"hello.spec.{path}" == caught.value.path
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    "asked_ms",
    [
        {"heartbeat_interval": 2_000, "fence_after": 6_000},
        {"heartbeat_interval": 2_000, "lease": 3_000, "fence_after": 3_000},  # every second then
        {"heartbeat_interval": 100, "fence_after": 3_000},
    ],
)
def test_fence_of_three_heartbeats_is_taken(asked_ms: dict[str, int]) -> None:
    """But none that is shorter than 3 s beyond the shutdown timeout."""
    assert asked_ms["fence_after"] == taken(shutdown_timeout=0, **asked_ms).fence_after_ms


async def test_agent_is_told_what_its_job_asked_for() -> None:
    """With the Welcome, and again when the number of sessions changes it."""
    state = State("c", 1)
    clock: Any = SimpleNamespace(now_ms=lambda: 0)  # nothing else of the coordinator is used
    service = AgentService(clock, Outboxes(), state, WorkerTokens("c"))
    asked = Outbox(
        SessionId("a"), 1, JobId("job"), JobSpec(heartbeat_interval_ms=200, lease_ms=9_000)
    )
    common = Outbox(SessionId("b"), 1, JobId("job"), runs_workers=True)
    asked.runs_workers = True
    for outbox, expected in ((asked, (200, 9_000)), (common, (1_000, 5_000))):
        outbox.welcome = Welcome(outbox.session, 1, NodeName("n"), 1)
        (message,) = service._envelopes.take(outbox)
        assert expected == timing_of(message.welcome)

    fill(state, 300)  # 600 ms each, and that is 500 heartbeats a second
    assert (600, 9_000) == timing_of((await service._answer(asked)).acknowledgement)
    answer = (await service._answer(common)).acknowledgement
    assert not answer.HasField("heartbeat_interval")

    fill(state, 5_000)
    for outbox in (asked, common):
        answer = (await service._answer(outbox)).acknowledgement
        assert (10_000, 30_000) == timing_of(answer)


async def test_nodes_that_a_job_needs_count_before_they_come() -> None:
    """The first agent of 4,096 gets the interval of them all; the agents of other jobs do not."""
    state = State("c", 1)
    clock: Any = SimpleNamespace(now_ms=lambda: 0)  # nothing else of the coordinator is used
    service = AgentService(clock, Outboxes(), state, WorkerTokens("c"))
    large = JobSpec(min_nodes=4_096, max_nodes=4_096)
    for spec, expected in ((large, (8_192, 24_576)), (JobSpec(), (1_000, 5_000))):
        outbox = Outbox(SessionId("a"), 1, JobId("job"), spec)
        outbox.welcome = Welcome(outbox.session, 1, NodeName("n"), 1)
        (message,) = service._envelopes.take(outbox)

        assert expected == timing_of(message.welcome)


def timing_of(told: agent_pb2.Welcome | agent_pb2.Acknowledgement) -> tuple[int, int]:
    return to_ms(told.heartbeat_interval), to_ms(told.lease)


def fill(state: State, sessions: int) -> None:
    """Let there be so many sessions."""
    for number in range(sessions):
        who = identity(f"n{number}", JobSpec(), session=number)
        state.nodes[who.session] = Node(who, who.name, arrival=number, connection=1, is_heard=True)
    state.heard = sessions
