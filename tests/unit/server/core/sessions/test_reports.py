"""Reports at unusual moments: after a stop, after a success, in a Hello, twice."""

from __future__ import annotations

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Acknowledge, Refuse
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import VerdictCause
from rallypoint.server.core.state.state import NO_CHANGES
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, finished, stop_reason, worker_exit
from support.core.rounds import trio

GRACE_MS = 500


def growing() -> tuple[Bench, FakeAgent, FakeAgent, FakeAgent]:
    """Return a bench whose round of two nodes is being stopped for a third."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3, max_restarts=3))
    a, b = bench.run_round("a", "b")
    bench.advance(60_000)
    (c,) = bench.join("c")
    bench.advance(5_000)
    return bench, a, b, c


def test_latest_report_is_not_applied_twice() -> None:
    """The last report, sent again, is acknowledged and changes no node."""
    _, a, *_ = trio()
    a.fail()
    a.sequence -= 1

    again = a.fail()

    assert (Acknowledge(a.session, a.sequence),) == again.effects
    assert {} == again.delta.nodes


def test_gap_ends_the_connection() -> None:
    """A gap in the reports gets an answer, so the agent sends a new Hello."""
    _, a, *_ = trio()
    a.sequence += 1

    refused = a.fail()

    assert refused.refusal is not None
    assert (Refuse(a.session, a.connection, refused.refusal),) == refused.effects


def test_failed_node_is_failed() -> None:
    """A node with a failed worker, or one that could not start, is FAILED until it is clean."""
    _, a, b, _ = trio()

    a.fail()
    assert NodeState.FAILED is a.known_node.state

    b.fail_to_start()
    assert NodeState.FAILED is b.known_node.state


def test_pids_of_a_held_round_are_known() -> None:
    """The pids in the held round of a Hello are kept."""
    _, _, _, c = trio()
    c.break_off()

    c.hello(held=c.held_round())

    assert (4_000,) == c.known_node.pids


def test_leaving_instead_of_starting_ends_the_round_at_once() -> None:
    """A node that leaves instead of starting ends its round before its Goodbye."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    a, b = bench.join("a", "b")

    b.leave("")

    verdict = bench.job().verdict
    assert verdict is not None
    assert (RoundReason.NODE_LEFT, "node b left: its agent is shutting down") == (
        stop_reason(a),
        verdict.text,
    )


def test_node_departs_once() -> None:
    """A node that reports twice that it leaves has one departure in its round."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    _, b = bench.join("a", "b")
    b.leave("draining")
    b.goodbye()

    round = bench.job().round
    assert round is not None
    assert ["draining"] == [departure.text for departure in round.departures]


def test_two_nodes_depart_twice() -> None:
    """Each lost member has its own departure."""
    bench, _, b, c = trio()
    b.break_off()
    c.break_off()
    bench.advance(GRACE_MS)

    round = bench.job().round
    assert round is not None
    assert ["b", "c"] == [departure.name for departure in round.departures]


def test_node_that_leaves_explains_a_failure_that_came_first() -> None:
    """A node that leaves explains its peers' failures, even when it was already clean."""
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
            bench.job().counts.restart_count,
            verdict.cause,
            bench.rounds()[-1].reason,
        )


def test_node_that_is_lost_explains_the_next_round() -> None:
    """After a failure that a lost node explains, the next round's reason is the lost node."""
    bench, _, b, c = trio()
    b.fail()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey()

    assert RoundReason.NODE_LOST is bench.rounds()[-1].reason


def test_return_during_a_stop_is_no_departure() -> None:
    """A member that resumes while it stops as ordered explains nothing."""
    bench, _, b, c = trio()
    b.fail()
    c.break_off()

    c.hello(held=c.held_round(NodeState.UNREADY))
    bench.obey()

    assert (1, ["a", "b", "c"]) == (bench.job().counts.restart_count, bench.order())


def test_success_outlives_blocked_processes() -> None:
    """A member that succeeded keeps its success when its processes survive SIGKILL."""
    bench, a, b, c = growing()
    a.succeed()
    a.block()

    b.succeed()

    assert (Outcome.SUCCEEDED, 1) == (finished(c).outcome, len(bench.rounds()))


def test_member_that_cannot_go_on_ends_the_round_uncharged() -> None:
    """No restart is charged, and no round has the node until it is ready."""
    bench, a, b, c = trio()
    a.block("no space left on device")
    bench.obey(b, c)

    sealed = bench.rounds()[-1]
    assert (RoundReason.NODE_LEFT, 0) == (sealed.reason, bench.job().counts.restart_count)
    assert ["b", "c"] == bench.order()
    assert "no space left on device" == bench.state.nodes[a.session].hindrance
    a.ready()
    assert "" == bench.state.nodes[a.session].hindrance


def test_success_outlives_a_goodbye() -> None:
    """A member that succeeded and then left keeps its success."""
    _, a, b, c = growing()
    a.succeed()
    a.ready()
    a.goodbye()

    b.succeed()

    assert Outcome.SUCCEEDED is finished(c).outcome


def test_success_alone_ends_growing() -> None:
    """A round with a Succeeded member does not grow, even when its exits are missing."""
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

    assert (1, 0) == (failed.job().counts.growths, failed.job().counts.reformations)
    assert (0, 1) == (lost.job().counts.growths, lost.job().counts.reformations)


def test_numbers_go_beyond_what_a_spare_was_given_elsewhere() -> None:
    """A spare that held a higher round elsewhere raises the number of the next round."""
    bench, _, b, _ = trio()
    (z,) = bench.join("z")
    z.break_off()
    z.hello(ready_round=9)
    assert 1 == bench.job().round_number

    b.fail()
    bench.obey()

    assert 10 == bench.job().round_number


def test_report_raises_no_round_number() -> None:
    """A spare was never ordered to run a round that does not exist; it is ready anyway."""
    bench, _, b, _ = trio()
    (z,) = bench.join("z")
    z.ready(round=99)
    assert NodeState.READY is z.known_node.state

    b.fail()
    bench.obey()

    assert 2 == bench.job().round_number


def test_report_of_a_newer_kind_is_acknowledged_and_ignored() -> None:
    """So a newer agent's next report is no gap."""
    bench, a, *_ = trio()
    before = bench.job()

    newer = a.report(inputs.NewerReport)

    assert (Acknowledge(a.session, a.sequence),) == newer.effects
    assert before == bench.job()
    a.succeed()
    assert NodeState.SUCCEEDED is a.known_node.state


def test_nothing_due_changes_nothing() -> None:
    """When nothing is due, the passing of time changes nothing."""
    bench = Bench()
    assert NO_CHANGES == bench.take(inputs.TimePassed()).delta

    bench, *_ = trio()
    assert NO_CHANGES == bench.take(inputs.TimePassed()).delta


def test_report_about_a_job_that_is_over_changes_nothing() -> None:
    """A broken invariant of an unknown or ended job changes nothing."""
    bench, *agents = trio()
    for agent in agents:
        agent.succeed()

    for job_id in ("job", "unknown"):
        assert NO_CHANGES == bench.take(inputs.JobBroken(JobId(job_id), "report")).delta
    assert Outcome.SUCCEEDED is bench.job().outcome
