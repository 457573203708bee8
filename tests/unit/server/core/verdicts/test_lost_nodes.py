"""A lost node: what it explains, and what its loss costs the run."""

from __future__ import annotations

import pytest

from rallypoint.server.core.model.desired import DesiredStandby
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.core.verdicts.blame import EXPLAINS_MS
from support.core.coordinator import Bench, consequence
from support.core.fake_agents import finished, worker_exit
from support.core.rounds import trio

GRACE_MS = 500
LEASE_MS = 5_000

SPEC = JobSpec()


def test_lost_node_is_not_charged() -> None:
    """A round that loses a node is re-formed without it and without charging a restart."""
    bench, a, b, c = trio(max_restarts=0)
    c.break_off()
    bench.advance(GRACE_MS)

    bench.obey()

    assert (0, 2, RoundReason.NODE_LOST) == (
        bench.job().counts.restart_count,
        len(bench.rounds()),
        bench.rounds()[-1].reason,
    )
    assert [0, 1] == [a.group_rank, b.group_rank]
    assert (VerdictCause.NODE_LOST, "c", Consequence.REFORMED) == (
        bench.the_verdict().cause,
        bench.the_verdict().name,
        consequence(bench.job()),
    )


@pytest.mark.parametrize(
    ("size", "lost", "text"),
    [
        (
            40,
            40,
            "40 of 40 nodes were lost within 0.1 s: suspect the network or a switch (n0 first: ",
        ),
        (
            40,
            30,
            "30 of 40 nodes were lost within 0.1 s: suspect the network or a switch (n0 first: ",
        ),
        (4, 3, "3 of 4 nodes were lost within 0.1 s: suspect the network or a switch (n0 first: "),
        (40, 3, "node n0 was lost: "),
        (4, 2, "node n0 was lost: "),
    ],
)
def test_many_nodes_that_are_lost_at_once_are_an_outage(size: int, lost: int, text: str) -> None:
    """No single one of them explains it; two nodes may die together."""
    bench = Bench(JobSpec(min_nodes=size, max_nodes=size))
    agents = bench.run_round(*(f"n{number}" for number in range(size)))
    for agent in agents[:lost]:
        agent.break_off()
    bench.advance(LEASE_MS)
    bench.obey()

    assert (text, "n0") == (bench.the_verdict().text[: len(text)], bench.the_verdict().name)


def test_nodes_that_are_lost_one_after_the_other_are_no_outage() -> None:
    """The round had stopped for the first one."""
    bench = Bench(JobSpec(min_nodes=4, max_nodes=4))
    agents = bench.run_round("n0", "n1", "n2", "n3")
    for agent in agents[:3]:
        agent.break_off()
        bench.advance(3_000)
    bench.advance(LEASE_MS)
    bench.obey()

    assert bench.the_verdict().text.startswith("node n0 was lost: ")


def test_lost_spare_stops_nothing() -> None:
    """The loss of a spare does not touch the round."""
    bench, *_ = trio()
    (spare,) = bench.join("z")
    assert DesiredStandby(spare=True) == spare.desired

    spare.goodbye()

    assert (Phase.RUNNING, ["z"]) == (bench.job().phase, [d.name for d in bench.job().lost])


def test_lost_node_explains_a_failure_that_came_first() -> None:
    """A peer's failure just before the break is collateral and is not charged."""
    bench, a, b, c = trio()
    b.fail(worker_exit(1, said="connection reset by peer"))
    c.break_off()
    bench.advance(GRACE_MS)

    bench.obey()

    verdict = bench.the_verdict()
    assert (0, VerdictCause.NODE_LOST, "c", 1) == (
        bench.job().counts.restart_count,
        verdict.cause,
        verdict.name,
        verdict.collateral_count,
    )
    assert RoundReason.NODE_LOST is bench.rounds()[-1].reason
    assert [0, 1] == [a.group_rank, b.group_rank]


@pytest.mark.parametrize(("after_ms", "charged"), [(EXPLAINS_MS, 0), (EXPLAINS_MS + 1, 1)])
def test_node_that_breaks_off_much_later_explains_nothing(after_ms: int, charged: int) -> None:
    """A node that is lost more than a second after the first failure did not cause it."""
    bench, _, b, c = trio()
    b.fail()
    bench.advance(after_ms)
    c.break_off()
    bench.advance(GRACE_MS)

    bench.obey()

    assert charged == bench.job().counts.restart_count


def test_silent_node_explains_failures_since_it_was_last_heard() -> None:
    """A node whose lease ends long after a failure explains it if it fell silent before."""
    bench, _, b, c = trio()
    bench.advance(1_000)
    c.fall_silent()
    bench.advance(200)
    b.fail(worker_exit(1, said="connection timed out"))

    bench.advance(LEASE_MS)
    bench.obey()

    assert (0, VerdictCause.NODE_LOST) == (
        bench.job().counts.restart_count,
        bench.the_verdict().cause,
    )


def test_node_that_fell_silent_later_explains_nothing() -> None:
    """A node that sent something more than a second after the failure did not cause it."""
    bench, _, b, c = trio()
    bench.advance(1_000)
    b.fail()
    bench.advance(EXPLAINS_MS + 1)
    c.heartbeat()
    c.fall_silent()

    bench.advance(LEASE_MS)
    bench.obey()

    assert (1, VerdictCause.WORKER_FAILED) == (
        bench.job().counts.restart_count,
        bench.the_verdict().cause,
    )


def test_node_that_was_clean_already_explains_nothing() -> None:
    """A node that is lost after its own Ready did not cause the earlier failure."""
    bench, _, b, c = trio()
    b.fail()
    c.obey()
    c.break_off()
    bench.advance(GRACE_MS)

    bench.obey()

    assert (1, "b") == (bench.job().counts.restart_count, bench.the_verdict().name)
    assert ["a", "b"] == bench.order()


def test_nobody_is_charged_while_a_member_may_still_be_lost() -> None:
    """No failure is judged while the lease of a silent member runs."""
    bench, a, b, c = trio(max_restarts=0)
    c.fall_silent()
    b.fail()
    bench.obey(a, b)

    bench.advance(LEASE_MS - 1)

    assert (Phase.STOPPING, None) == (bench.job().phase, bench.job().outcome)


def reform(bench: Bench, times: int) -> None:
    """Let node b leave and be replaced, `times` times."""
    for _ in range(times):
        leaver = next(a for a in bench.agents.values() if a.identity.name == "b" and a.node)
        leaver.goodbye()
        bench.obey()
        if bench.job().outcome is None:
            bench.join("b")
            bench.obey()


def test_reformations_have_a_limit() -> None:
    """Ten uncharged re-formations without progress are allowed; the eleventh ends the run."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    a, _ = bench.run_round("a", "b")
    reform(bench, SPEC.max_reformations)
    assert (Phase.RUNNING, SPEC.max_reformations + 1) == (
        bench.job().phase,
        len(bench.rounds()),
    )

    reform(bench, 1)

    order = finished(a)
    assert order.verdict is not None
    assert (Outcome.FAILED, VerdictCause.NO_PROGRESS, "b") == (
        order.outcome,
        order.verdict.cause,
        order.verdict.name,
    )
    assert (
        "10 re-formations in a row without progress; the last one because node b left: "
        "its agent shut down"
    ) == order.verdict.text


def test_progress_renews_the_reformations() -> None:
    """A round that lived for five minutes resets the count of re-formations."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    bench.run_round("a", "b")
    reform(bench, 2)
    assert 2 == bench.job().counts.reformations

    bench.advance(SPEC.progress_after_ms)
    reform(bench, 1)

    assert 1 == bench.job().counts.reformations
