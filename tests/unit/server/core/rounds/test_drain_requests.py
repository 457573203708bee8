"""An operator drains a node: which node the request means, and how long it stays open."""

from __future__ import annotations

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.desired import (
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
)
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench
from support.core.decisions import DrainRequested, DrainRequestEnded
from support.core.drains import DRAIN_MS, ask, go, notices, wanted
from support.core.fake_agents import JOB
from support.core.rounds import trio


def test_operator_asks_a_member() -> None:
    """The node's desired state says so, and the others get a notice; the request stays open until
    the node is gone."""
    bench, a, b, c = trio()

    assert ask(bench, "c") is None
    assert [("c", DRAIN_MS)] == notices(bench, a)
    assert [] == notices(bench, c)
    assert [None, ("maintenance", DRAIN_MS)] == [wanted(bench, agent) for agent in (b, c)]
    assert any(isinstance(record, DrainRequested) for record in bench.decisions)

    go(c)
    bench.obey()
    assert any(isinstance(record, DrainRequestEnded) for record in bench.decisions)
    assert () == bench.job().drain_requests
    bench.check_journal()


def test_wish_outlives_the_run() -> None:
    """An agent that is cut off before it gets its notice, and comes back when its run is over,
    has no place in the next run either; another agent of its name has."""
    bench = Bench(JobSpec())
    (a,) = bench.run_round("a")
    ask(bench, "a")
    a.break_off()
    bench.advance(600 + bench.spec.join_timeout_ms)
    assert Outcome.ABANDONED is bench.job().outcome

    a.run = 0  # no Welcome had reached it
    a.hello()
    assert (2, Phase.FORMING) == (bench.job().run, bench.job().phase)
    assert isinstance(a.desired, DesiredReleased)
    bench.check_journal()

    a.goodbye()
    (b,) = bench.join("a")
    assert isinstance(b.desired, DesiredRun)


def test_operator_asks_a_spare() -> None:
    """A node without a place is released at once, and the round does not notice."""
    bench, a, _, _ = trio()
    (d,) = bench.join("d")
    assert DesiredStandby(spare=True) == d.desired

    ask(bench, "d")

    assert isinstance(d.desired, DesiredReleased)
    assert isinstance(a.desired, DesiredRun)


@pytest.mark.parametrize(
    ("job", "name", "expected"),
    [
        (JOB, "z", RefusalKind.UNKNOWN_NODE),
        ("other", "a", RefusalKind.UNKNOWN_JOB),
    ],
)
def test_operator_asks_nobody(job: str, name: str, expected: RefusalKind) -> None:
    """A node or job that is not there is an error, and changes nothing."""
    bench, *_ = trio()
    refusal = bench.take(inputs.DrainNode(JobId(job), NodeName(name), 0, "")).refusal

    assert refusal is not None
    assert expected is refusal.kind


def test_drained_node_is_not_placed_while_forming() -> None:
    """A ready node that drains does not count for the round that forms."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    (a,) = bench.join("a")
    ask(bench, "a")
    bench.join("b")

    assert Phase.FORMING is bench.job().phase
    assert isinstance(a.desired, DesiredReleased)
    assert [("a", "draining")] == [(node.name, node.text) for node in bench.the_wait().awaited]


def test_agent_that_was_asked_is_meant_in_the_next_run_too() -> None:
    """An agent that was away at the request, and whose run ended meanwhile, gets no place."""
    bench = Bench(JobSpec())
    (a,) = bench.run_round("a")
    a.break_off()
    assert ask(bench, "a") is None
    bench.advance(bench.spec.join_timeout_ms + 1_000)
    assert Outcome.ABANDONED is bench.job().outcome

    a.run = 0
    a.hello()

    assert (2, Phase.FORMING) == (bench.job().run, bench.job().phase)
    assert isinstance(a.desired, DesiredReleased)


def test_member_that_succeeded_before_it_was_asked() -> None:
    """A success that was on its way counts: the round neither waits nor stops for that member."""
    bench, a, b, c = trio()
    b.drain(2 * DRAIN_MS)
    ask(bench, "c")

    c.succeed()
    assert [("b", 2 * DRAIN_MS)] == notices(bench, a)
    c.goodbye("drained")
    bench.advance(2 * DRAIN_MS - 1)
    assert Phase.RUNNING is bench.job().phase

    for agent in (a, b):
        agent.succeed()
    assert Outcome.SUCCEEDED is bench.job().outcome


def test_success_that_comes_after_the_stop() -> None:
    """A round that was stopped for a drain ends as drained also when that member succeeds then."""
    bench, _, _, c = trio()
    ask(bench, "c", 0)
    assert Phase.STOPPING is bench.job().phase

    c.succeed()
    bench.obey()

    assert (RoundReason.DRAINED, ["a", "b"]) == (bench.rounds()[-1].reason, bench.order())
