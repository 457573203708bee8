"""Who may continue the session of a node that the coordinator knows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages.effects import Refuse
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.desired import DesiredRun
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent

NUMBER_MAX = 2**53 - 1


def resume(agent: FakeAgent) -> None:
    """Send a second Hello, with the token."""
    assert agent.hello().refusal is None


@pytest.mark.parametrize("shows_its_welcome", [FakeAgent.heartbeat, FakeAgent.ready, resume])
@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("connection", [3, NUMBER_MAX])
def test_hello_without_the_token_is_refused(
    shows_its_welcome: object, is_broken: bool, connection: int
) -> None:
    """Once the agent has shown that it has the token, also while its stream is broken."""
    bench = Bench()
    (agent,) = bench.join("a")
    shows_its_welcome(agent)  # type: ignore[operator]
    if is_broken:
        agent.break_off()
    agent.connection = connection - 1
    refused = agent.hello(is_proven=False)

    assert refused.refusal is not None
    assert RefusalKind.NOT_PROVEN is refused.refusal.kind
    assert (Refuse(agent.session, connection, refused.refusal),) == refused.effects


def test_hello_before_any_other_message_needs_no_token() -> None:
    """The Welcome with the token may have been lost, more than once."""
    bench = Bench()
    (agent,) = bench.join("a")
    refusals = [agent.hello(is_proven=False).refusal for _ in range(3)]
    agent.heartbeat()

    assert [None] * 3 == refusals
    assert agent.hello(is_proven=False).refusal is not None


def test_message_of_an_older_connection_shows_nothing() -> None:
    """It may have been sent before the newest Hello."""
    bench = Bench()
    (agent,) = bench.join("a")
    before = agent.sender()
    agent.hello(is_proven=False)
    agent.connection = before.connection
    agent.heartbeat()
    agent.connection += 1

    assert agent.hello(is_proven=False).refusal is None


def test_new_coordinator_needs_no_token() -> None:
    """It knows no session, so there is nothing to take over."""
    (agent,) = Bench().join("a")
    agent.heartbeat()
    after = Bench(coordinator_id="c2")

    assert after.adopt_agent(agent).hello(is_proven=False).refusal is None


@pytest.mark.parametrize("is_broken", [False, True])
def test_session_stays_in_its_job(is_broken: bool) -> None:
    """A Hello that names another job is refused, with the token too; the node keeps its place."""
    bench = Bench()
    (agent,) = bench.join("a")
    agent.heartbeat()
    if is_broken:
        agent.break_off()
    own, agent.identity = agent.identity, replace(agent.identity, job_id=JobId("another"))
    refused = agent.hello()

    assert refused.refusal is not None
    assert RefusalKind.OTHER_JOB is refused.refusal.kind
    assert (Refuse(agent.session, agent.connection, refused.refusal),) == refused.effects
    agent.identity = own
    assert agent.hello().refusal is None


def test_ready_node_stays_ready() -> None:
    """Its Hello names the round until it knows that the exits are recorded; they are by then."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2, max_restarts=1))
    a, b = bench.run_round("a", "b")
    b.fail()
    known = a.sequence
    a.ready()
    a.hello(held=a.held_round(NodeState.UNREADY), acknowledged=known)
    state = a.known_node.state
    b.ready()

    assert NodeState.READY is state
    assert isinstance(a.desired, DesiredRun) and 2 == a.desired.header.number
