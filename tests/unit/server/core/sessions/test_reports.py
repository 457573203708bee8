"""Reports at unusual moments: after a stop, after a success, in a Hello, twice."""

from __future__ import annotations

from rallypoint.server.core import inputs
from rallypoint.server.core.effects import Acknowledge, Refuse
from rallypoint.server.core.model import (
    Activity,
    JobId,
    JobSpec,
    Outcome,
    Phase,
    RoundReason,
    VerdictCause,
)
from support.coordinator import Bench
from support.fake_agents import FakeAgent, finished, stop_reason, worker_exit

GRACE_MS = 500


def trio(max_restarts: int = 3) -> tuple[Bench, FakeAgent, FakeAgent, FakeAgent]:
    """Return a bench with a started round of three nodes, of which two suffice."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3, max_restarts=max_restarts, grow=False))
    a, b, c = bench.run_round("a", "b", "c")
    return bench, a, b, c


def growing() -> tuple[Bench, FakeAgent, FakeAgent, FakeAgent]:
    """Return a bench whose round of two nodes is being stopped for a third."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3, max_restarts=3))
    a, b = bench.run_round("a", "b")
    bench.advance(60_000)
    (c,) = bench.join("c")
    bench.advance(5_000)
    return bench, a, b, c


def test_latest_report_is_not_taken_twice() -> None:
    """The very last report, sent again, is acknowledged and changes no node."""
    _, a, *_ = trio()
    a.fail()
    a.sequence -= 1

    again = a.fail()

    assert (Acknowledge(a.session, a.sequence),) == again.effects
    assert {} == again.delta.nodes


def test_gap_ends_the_connection() -> None:
    """A gap in the reports is answered, so that the agent says Hello again."""
    _, a, *_ = trio()
    a.sequence += 1

    refused = a.fail()

    assert refused.refusal is not None
    assert (Refuse(a.session, a.connection, refused.refusal),) == refused.effects


def test_failed_node_is_failed() -> None:
    """A node with a failed worker, or one that could not start, is FAILED until it is clean."""
    _, a, b, _ = trio()

    a.fail()
    assert Activity.FAILED is a.the_node.activity

    b.refuse()
    assert Activity.FAILED is b.the_node.activity


def test_pids_of_a_claim_are_known() -> None:
    """What a Hello says of the workers' pids is kept."""
    _, _, _, c = trio()
    c.break_off()

    c.hello(claim=c.claim())

    assert (4_000,) == c.the_node.pids


def test_leaving_instead_of_starting_ends_the_round_at_once() -> None:
    """A node that leaves instead of starting ends its round before it says Goodbye."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    a, b = bench.join("a", "b")

    b.refuse("", leaving=True)

    verdict = bench.job().verdict
    assert verdict is not None
    assert (RoundReason.NODE_LEFT, "node b left: it is leaving") == (stop_reason(a), verdict.text)


def test_node_departs_once() -> None:
    """A node that says twice that it leaves has one departure in its round."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    _, b = bench.join("a", "b")
    b.refuse("draining", leaving=True)
    b.goodbye()

    round = bench.job().round
    assert round is not None
    assert ["draining"] == [departure.text for departure in round.departures]


def test_two_nodes_depart_twice() -> None:
    """Each member that is lost has its own departure."""
    bench, _, b, c = trio()
    b.break_off()
    c.break_off()
    bench.advance(GRACE_MS)

    round = bench.job().round
    assert round is not None
    assert ["b", "c"] == [departure.name for departure in round.departures]


def test_node_that_leaves_explains_a_failure_that_came_first() -> None:
    """A node that leaves explains its peers' failures, also when it was clean already."""
    for is_clean in (False, True):
        bench, _, b, c = trio()
        b.fail(worker_exit(1, said="connection reset by peer"))
        if is_clean:
            c.obey()
        c.goodbye("signal 15")
        bench.obey()

        verdict = bench.job().verdict
        assert verdict is not None
        assert (0, VerdictCause.NODE_LEFT, RoundReason.NODE_LEFT) == (
            bench.job().restart_count,
            verdict.cause,
            bench.rounds()[-1].reason,
        )


def test_node_that_is_lost_explains_the_next_round() -> None:
    """The round after a failure that a lost node explains begins because of the node."""
    bench, _, b, c = trio()
    b.fail()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey()

    assert RoundReason.NODE_LOST is bench.rounds()[-1].reason


def test_return_during_a_stop_is_no_departure() -> None:
    """A member that comes back stopping, as it was told to, explains nothing."""
    bench, _, b, c = trio()
    b.fail()
    c.break_off()

    c.hello(claim=c.claim(Activity.UNREADY))
    bench.obey()

    assert (1, ["a", "b", "c"]) == (bench.job().restart_count, bench.order())


def test_success_outlives_blocked_processes() -> None:
    """A member that succeeded and has processes that survive SIGKILL keeps its success."""
    bench, a, b, c = growing()
    a.succeed()
    a.block()

    b.succeed()

    assert (Outcome.SUCCEEDED, 1) == (finished(c).outcome, len(bench.rounds()))


def test_success_outlives_a_goodbye() -> None:
    """A member that succeeded, stopped and left has not left its round without success."""
    _, a, b, c = growing()
    a.succeed()
    a.ready()
    a.goodbye()

    b.succeed()

    assert Outcome.SUCCEEDED is finished(c).outcome


def test_success_alone_ends_growing() -> None:
    """A node's Succeeded keeps its round from growing, even without the exits before it."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3))
    a, _ = bench.run_round("a", "b")
    a.succeed()
    bench.join("c")

    bench.advance(60_000)

    assert Phase.RUNNING is bench.job().phase


def test_growth_that_meets_a_failure_is_a_growth() -> None:
    """A failure during a growth stop counts as growth; a loss counts as a re-formation."""
    failed, a, *_ = growing()
    a.fail()
    failed.obey()
    lost, a, *_ = growing()
    a.break_off()
    lost.advance(GRACE_MS)
    lost.obey()

    assert (1, 0) == (failed.job().growths, failed.job().reformations)
    assert (0, 1) == (lost.job().growths, lost.job().reformations)


def test_numbers_go_beyond_what_a_spare_was_given_elsewhere() -> None:
    """A spare that was in a higher round elsewhere raises the number of the next round."""
    bench, _, b, _ = trio()
    (z,) = bench.join("z")
    z.ready(round=9)
    assert 1 == bench.job().round_number

    b.fail()
    bench.obey()

    assert 10 == bench.job().round_number


def test_nothing_due_changes_nothing() -> None:
    """When nothing is due, the passing of time changes nothing."""
    bench = Bench()
    assert bench.take(inputs.TimePassed()).delta.is_empty

    bench, *_ = trio()
    assert bench.take(inputs.TimePassed()).delta.is_empty


def test_report_about_a_job_that_is_over_changes_nothing() -> None:
    """A broken invariant of a job that is unknown or has ended changes nothing."""
    bench, *agents = trio()
    for agent in agents:
        agent.succeed()

    for job_id in ("job", "unknown"):
        assert bench.take(inputs.JobBroken(JobId(job_id), "report")).delta.is_empty
    assert Outcome.SUCCEEDED is bench.job().outcome
