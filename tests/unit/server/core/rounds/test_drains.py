"""Nodes that leave with notice: who is told, when the round stops, what it costs."""

from __future__ import annotations

import pytest

from rallypoint.server.core import inputs
from rallypoint.server.core.effects import (
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
    DrainAsked,
    DrainOver,
    Notify,
    RefusalKind,
)
from rallypoint.server.core.model import (
    Consequence,
    JobId,
    JobSpec,
    NodeName,
    Outcome,
    Phase,
    RoundReason,
    VerdictCause,
    WaitKind,
)
from support.coordinator import Bench, consequence
from support.fake_agents import JOB, FakeAgent, stop_reason, worker_exit

DRAIN_MS = 20_000
LEFT = worker_exit(0, prompted=True)
"""The exit of a worker that had been told that its node drains."""


def trio(low: int = 2, high: int = 3) -> tuple[Bench, FakeAgent, FakeAgent, FakeAgent]:
    """Return a running round of three nodes that may go on with two."""
    bench = Bench(JobSpec(min_nodes=low, max_nodes=high, max_restarts=2, grow=False))
    a, b, c = bench.run_round("a", "b", "c")
    return bench, a, b, c


def ask(bench: Bench, name: str, time_ms: int = DRAIN_MS) -> RefusalKind | None:
    """Ask a node to leave, as an operator; return why that was refused, or None."""
    said = inputs.DrainNode(JobId(JOB), NodeName(name), time_ms, "maintenance")
    refusal = bench.take(said).refusal
    return None if refusal is None else refusal.kind


def told(bench: Bench, agent: FakeAgent) -> list[tuple[str | None, int]]:
    """Return what an agent was told last to expect: who leaves, and the ms left."""
    found = [e for e in bench.effects if isinstance(e, Notify) and e.session == agent.session]
    return [(notice.name, left_ms) for notice, left_ms in found[-1].notices] if found else []


def go(agent: FakeAgent) -> None:
    """Let a draining node's workers be done, and the node go."""
    agent.exit(LEFT)
    agent.refuse("done", leaving=True)
    agent.goodbye("done")


def test_everybody_learns_that_a_node_drains() -> None:
    """All members hear who leaves and when at the latest; the round goes on meanwhile."""
    bench, a, b, c = trio()

    c.drain(DRAIN_MS)
    bench.advance(DRAIN_MS - 1)

    assert [[("c", DRAIN_MS)]] * 3 == [told(bench, agent) for agent in (a, b, c)]
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
        job.restart_count,
        bench.rounds()[-1].reason,
    )
    assert job.verdict is not None
    assert (VerdictCause.NODE_LEFT, "node c was drained: SIGTERM", Consequence.REFORMED) == (
        job.verdict.cause,
        job.verdict.text,
        consequence(job),
    )


def test_round_is_stopped_when_the_time_is_over() -> None:
    """At the deadline the coordinator stops the round, whatever the node does; then it is out."""
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
    bench, a, b, c = trio(low=2)
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
    """When the last draining node is gone nobody has anything left to wait for."""
    bench, a, b, c = trio(low=2)
    b.drain(DRAIN_MS)
    c.drain(DRAIN_MS)

    go(b)
    assert Phase.RUNNING is bench.job().phase
    go(c)

    assert isinstance(a.desired, DesiredStop)


@pytest.mark.parametrize(
    ("said", "charged"),
    [
        ("ConnectionResetError: [Errno 104] Connection reset by peer", 0),
        ("", 0),
        ("ValueError: shard 17 is corrupt", 1),
    ],
)
def test_workers_that_left_explain_broken_connections(said: str, charged: int) -> None:
    """A peer that fails after the draining workers began to leave is collateral, however late,
    unless it says a cause of its own."""
    bench, a, _, c = trio()
    c.drain(DRAIN_MS)
    c.exit(LEFT)
    bench.advance(5_000)

    a.fail(worker_exit(1, said=said))
    bench.advance(1_000)
    bench.obey()

    began = RoundReason.WORKER_FAILED if charged else RoundReason.DRAINED
    assert (charged, began) == (bench.job().restart_count, bench.rounds()[-1].reason)


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

    assert (1, ["a", "b"]) == (bench.job().restart_count, bench.order())


@pytest.mark.parametrize("is_late", [False, True])
def test_workers_that_the_stop_ended_explain_nothing(is_late: bool) -> None:
    """A failure stops the round, and with it the draining node's workers: it stays the cause, also
    when the node was asked to leave only then."""
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

    assert (1, RoundReason.WORKER_FAILED) == (bench.job().restart_count, bench.rounds()[-1].reason)


def test_node_that_goes_when_it_was_stopped_explains_nothing() -> None:
    """A failure stops the round; that a node drains then, and goes, is not why it ended."""
    bench, a, _, c = trio()
    a.fail(worker_exit(1))
    ask(bench, "c", 0)
    c.goodbye("drained: maintenance")  # it is clean, and need not say Ready first
    bench.obey()

    job = bench.job()
    assert (1, ["a", "b"]) == (job.restart_count, bench.order())
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
        bench.job().reformations,
        bench.job().drains,
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

    assert (RoundReason.DRAINED, 0) == (bench.rounds()[-1].reason, bench.job().reformations)


def test_last_node_is_cut_off_while_it_drains() -> None:
    """It has not said goodbye: the run waits for it, or for another one, as for any lost node."""
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
    c.hello(claim=c.claim(), draining=(DRAIN_MS, "SIGTERM"))

    assert [("c", DRAIN_MS)] == told(bench, a)


def test_draining_again_keeps_the_first_end() -> None:
    """Said again with a later end, the earlier one counts; an earlier one counts at once."""
    bench, a, _, c = trio()
    c.drain(DRAIN_MS)
    c.drain(2 * DRAIN_MS)
    assert [("c", DRAIN_MS)] == told(bench, a)

    c.drain(5_000)
    assert [("c", 5_000)] == told(bench, a)
    bench.advance(5_000)
    assert Phase.STOPPING is bench.job().phase


def test_operator_asks_a_member() -> None:
    """The node is told like everybody, and that it is meant; the wish is kept till it is gone."""
    bench, a, _, c = trio()

    assert ask(bench, "c") is None
    assert [("c", DRAIN_MS)] == told(bench, c) == told(bench, a)
    assert isinstance(bench.records[-1], DrainAsked)

    go(c)
    bench.obey()
    assert any(isinstance(record, DrainOver) for record in bench.records)
    assert () == bench.job().asked
    bench.check_journal()


def test_wish_outlives_the_run() -> None:
    """An agent that is cut off before it hears of anything, and comes back when its run is over,
    has no place in the next one either; another agent of its name has."""
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
    assert [("a", "draining")] == [(node.name, node.state) for node in bench.the_wait().awaited]


def test_all_succeed_while_a_drain_is_under_way() -> None:
    """When every node succeeds although one was about to leave, the run has succeeded."""
    bench, a, b, c = trio()
    for agent in (a, b, c):
        agent.succeed()
        if agent is b:
            c.drain(DRAIN_MS)

    assert Outcome.SUCCEEDED is bench.job().outcome


def test_notice_is_told_again_after_a_break() -> None:
    """A member that comes back hears again what is about to happen, with the time that is left."""
    bench, a, _, c = trio()
    c.drain(DRAIN_MS)
    bench.advance(1_000)

    a.break_off()
    a.hello(claim=a.claim())

    assert [("c", DRAIN_MS - 1_000)] == told(bench, a)


def test_agent_that_was_asked_is_meant_in_the_next_run_too() -> None:
    """An agent that was away when it was asked, and whose run ended meanwhile, gets no place."""
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
    """A success that was on its way counts: nobody waits for that member, nor stops for it."""
    bench, a, b, c = trio()
    b.drain(2 * DRAIN_MS)
    ask(bench, "c")

    c.succeed()
    assert [("b", 2 * DRAIN_MS)] == told(bench, a)
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
    bench, a, b, _ = trio(low=2)
    bench.join("d")
    bench.take(inputs.Cordon(JobId(JOB), NodeName("c"), "its disk is slow"))
    a.drain(DRAIN_MS)
    b.drain(2 * DRAIN_MS)

    bench.advance(2 * DRAIN_MS - 1)
    assert Phase.RUNNING is bench.job().phase
    bench.advance(1)
    assert Phase.STOPPING is bench.job().phase
