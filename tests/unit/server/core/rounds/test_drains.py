"""Nodes that leave with notice: the notices, the end of the round, and its cost."""

from __future__ import annotations

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.desired import (
    DesiredReleased,
    DesiredStop,
)
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from support.core.coordinator import Bench, consequence
from support.core.drains import DRAIN_MS, LEFT, ask, go, notices, wanted
from support.core.fake_agents import JOB, FakeAgent, stop_reason, worker_exit
from support.core.rounds import trio


def test_everybody_learns_that_a_node_drains() -> None:
    """All members learn which node leaves and when at the latest; the round continues meanwhile."""
    bench, a, b, c = trio()

    c.drain(DRAIN_MS)
    bench.advance(DRAIN_MS - 1)

    assert [[("c", DRAIN_MS)]] * 2 == [notices(bench, agent) for agent in (a, b)]
    assert ([], ("SIGTERM", DRAIN_MS)) == (notices(bench, c), wanted(bench, c))
    assert (Phase.RUNNING, 1) == (bench.job().phase, len(bench.rounds()))


def test_round_goes_on_without_a_node_that_is_done() -> None:
    """When the workers of the draining node are done, a round without it follows, uncharged."""
    bench, _, _, c = trio()
    c.drain(DRAIN_MS)
    bench.advance(3_000)

    go(c)
    bench.obey()

    job = bench.job()
    assert (["a", "b"], 0, RoundReason.DRAINED) == (
        bench.order(),
        job.counts.restart_count,
        bench.rounds()[-1].reason,
    )
    assert job.verdict is not None
    assert (VerdictCause.NODE_LEFT, "node c was drained: SIGTERM", Consequence.REFORMED) == (
        job.verdict.cause,
        job.verdict.text,
        consequence(job),
    )


def test_round_is_stopped_when_the_time_is_over() -> None:
    """At the deadline the coordinator stops the round, and the next one is without the node."""
    bench, a, _, c = trio()
    c.drain(DRAIN_MS)

    bench.advance(DRAIN_MS)
    assert RoundReason.DRAINED is stop_reason(a)
    bench.obey()

    assert ["a", "b"] == bench.order()
    assert isinstance(c.desired, DesiredReleased)


def test_spare_takes_the_slot() -> None:
    """A spare takes the place of the node that was drained; the others keep their ranks."""
    bench, _, b, _ = trio()
    bench.join("d")
    b.drain(DRAIN_MS)

    go(b)
    bench.obey()

    assert ["a", "d", "c"] == bench.order()


def test_drains_at_one_time_are_one() -> None:
    """Nodes that drain at the same time leave together, also when only one of them is done."""
    bench = Bench(JobSpec(min_nodes=1, max_nodes=4, grow=False))
    _, _, c, d = bench.run_round("a", "b", "c", "d")
    c.drain(DRAIN_MS)
    bench.advance(1_000)
    d.drain(DRAIN_MS)

    go(c)
    bench.obey()

    assert (["a", "b"], 2) == (bench.order(), len(bench.rounds()))


@pytest.mark.parametrize("first_ms", [5_000, 20_000])
def test_too_few_would_stay(first_ms: int) -> None:
    """Where too few would stay, the round runs until the last draining node's time is over."""
    bench, a, b, c = trio()
    b.drain(first_ms)
    c.drain(12_000)
    assert WaitKind.DRAIN is bench.the_wait().kind

    go(b)
    bench.advance(11_999)
    assert Phase.RUNNING is bench.job().phase

    bench.advance(8_001)
    assert isinstance(a.desired, DesiredStop)


def test_long_reason_is_cut_in_a_wait() -> None:
    """A wait goes to every node that stands by, with each heartbeat: it stays small."""
    bench, _, b, c = trio()
    for agent in (b, c):
        agent.drain(DRAIN_MS, "x" * 1_000)

    assert len(bench.the_wait().text) < 500


def test_too_few_would_stay_and_all_are_gone() -> None:
    """When the last draining node is gone, the round waits for nothing."""
    bench, a, b, c = trio()
    b.drain(DRAIN_MS)
    c.drain(DRAIN_MS)

    go(b)
    assert Phase.RUNNING is bench.job().phase
    go(c)

    assert isinstance(a.desired, DesiredStop)


@pytest.mark.parametrize(
    ("error", "charged"),
    [
        ("ConnectionResetError: [Errno 104] Connection reset by peer", 0),
        ("", 0),
        ("ValueError: shard 17 is corrupt", 1),
    ],
)
def test_workers_that_left_explain_broken_connections(error: str, charged: int) -> None:
    """A peer that fails after the draining workers began to leave is collateral, however late,
    unless it reports its own cause."""
    bench, a, _, c = trio()
    c.drain(DRAIN_MS)
    c.exit(LEFT)
    bench.advance(5_000)

    a.fail(worker_exit(1, said=error))
    bench.advance(1_000)
    bench.obey()

    began = RoundReason.WORKER_FAILED if charged else RoundReason.DRAINED
    assert (charged, began) == (bench.job().counts.restart_count, bench.rounds()[-1].reason)


def test_failure_before_anybody_left_is_charged() -> None:
    """A worker that fails while all of the draining node's still run is a failure like any other,
    also when the node uses the occasion to go."""
    bench, a, _, c = trio()
    c.drain(DRAIN_MS)
    bench.advance(1_000)

    a.fail(worker_exit(1))
    bench.obey()
    c.goodbye()
    bench.obey()

    assert (1, ["a", "b"]) == (bench.job().counts.restart_count, bench.order())


@pytest.mark.parametrize("is_late", [False, True])
def test_workers_that_the_stop_ended_explain_nothing(is_late: bool) -> None:
    """A failure stops the round, and with it the draining node's workers. It stays the cause, also
    when the drain was requested only then."""
    bench, a, _, c = trio()
    if not is_late:
        c.drain(DRAIN_MS)
    a.fail(worker_exit(1))
    if is_late:
        ask(bench, "c")

    c.exit(LEFT)
    bench.obey()
    c.goodbye()
    bench.obey()

    assert (1, RoundReason.WORKER_FAILED) == (
        bench.job().counts.restart_count,
        bench.rounds()[-1].reason,
    )


def test_node_that_goes_when_it_was_stopped_explains_nothing() -> None:
    """When a node drains and leaves after a failure, the failure stays why the round ended."""
    bench, a, _, c = trio()
    a.fail(worker_exit(1))
    ask(bench, "c", 0)
    c.goodbye("drained: maintenance")  # it is clean, and need not say Ready first
    bench.obey()

    job = bench.job()
    assert (1, ["a", "b"]) == (job.counts.restart_count, bench.order())
    assert [("c", "maintenance")] == [(lost.name, lost.text) for lost in job.lost]


def drain_often(bench: Bench, agents: list[FakeAgent], times: int) -> None:
    """Drain one node after the other, each replaced by a spare."""
    for number in range(times):
        (spare,) = bench.join(f"s{number}")
        agents[0].drain(0)
        go(agents.pop(0))
        agents.append(spare)
        bench.obey()


def test_drains_are_no_reformations() -> None:
    """All nodes may be drained one after the other, again and again, but not for ever."""
    bench, *agents = trio()
    most = bench.spec.max_reformations * bench.spec.max_nodes
    drain_often(bench, agents, most)
    assert (Phase.RUNNING, 0, most) == (
        bench.job().phase,
        bench.job().counts.reformations,
        bench.job().counts.drains,
    )

    bench.join("last")
    agents[0].drain(0)
    go(agents[0])
    bench.obey()

    job = bench.job()
    assert job.verdict is not None
    assert (Outcome.FAILED, VerdictCause.NO_PROGRESS) == (job.outcome, job.verdict.cause)
    assert "30 drains in a row without progress" in job.verdict.text


def test_node_that_is_cut_off_while_it_drains() -> None:
    """A draining node whose machine is taken away is drained, not lost."""
    bench, _, _, c = trio()
    c.drain(DRAIN_MS)
    c.break_off()
    bench.advance(600)
    bench.obey()

    assert (RoundReason.DRAINED, 0) == (bench.rounds()[-1].reason, bench.job().counts.reformations)


def test_last_node_is_cut_off_while_it_drains() -> None:
    """A node that never sent Goodbye is awaited, or a replacement, like any lost node."""
    bench = Bench(JobSpec())
    (a,) = bench.run_round("a")
    a.drain(DRAIN_MS)
    a.break_off()
    bench.advance(bench.spec.join_timeout_ms)
    assert Phase.FORMING is bench.job().phase

    bench.join("b")
    assert (["b"], 1) == (bench.order(), bench.job().run)


def test_node_drains_in_its_hello() -> None:
    """A node that resumes says again that it drains."""
    bench, a, _, c = trio()
    c.break_off()
    c.hello(held=c.held_round(), draining=(DRAIN_MS, "SIGTERM"))

    assert [("c", DRAIN_MS)] == notices(bench, a)


def test_draining_again_keeps_the_first_end() -> None:
    """Of two announcements the earlier end counts, whichever comes first."""
    bench, a, _, c = trio()
    c.drain(DRAIN_MS)
    c.drain(2 * DRAIN_MS)
    assert [("c", DRAIN_MS)] == notices(bench, a)

    c.drain(5_000)
    assert [("c", 5_000)] == notices(bench, a)
    bench.advance(5_000)
    assert Phase.STOPPING is bench.job().phase


def test_all_succeed_while_a_drain_is_under_way() -> None:
    """When every node succeeds although one drains, the run has succeeded."""
    bench, a, b, c = trio()
    for agent in (a, b, c):
        agent.succeed()
        if agent is b:
            c.drain(DRAIN_MS)

    assert Outcome.SUCCEEDED is bench.job().outcome


def test_notice_is_told_again_after_a_break() -> None:
    """A member that comes back gets its notices again, with the time that is left."""
    bench, a, _, c = trio()
    c.drain(DRAIN_MS)
    bench.advance(1_000)

    a.break_off()
    a.hello(held=a.held_round())

    assert [("c", DRAIN_MS - 1_000)] == notices(bench, a)


def test_growth_leaves_a_draining_node_its_time() -> None:
    """A round whose members drain is not stopped to grow: it would cut them off, and the next one
    could be too small."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3))
    a, b = bench.run_round("a", "b")
    bench.join("c")
    a.drain(2 * DRAIN_MS)
    b.drain(2 * DRAIN_MS)

    bench.advance(2 * DRAIN_MS - 1)

    assert (Phase.RUNNING, 1) == (bench.job().phase, len(bench.rounds()))


def test_cordoned_member_is_none_that_stays() -> None:
    """No later round has a place for a cordoned member, so it does not count as enough."""
    bench, a, b, _ = trio()
    bench.join("d")
    bench.take(inputs.Cordon(JobId(JOB), NodeName("c"), "its disk is slow"))
    a.drain(DRAIN_MS)
    b.drain(2 * DRAIN_MS)

    bench.advance(2 * DRAIN_MS - 1)
    assert Phase.RUNNING is bench.job().phase
    bench.advance(1)
    assert Phase.STOPPING is bench.job().phase
