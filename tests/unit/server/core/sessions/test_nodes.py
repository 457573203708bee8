"""Nodes break off, come back, fall silent, leave, or do not do what they are told in time."""

from __future__ import annotations

import pytest

from rallypoint.server.core import inputs
from rallypoint.server.core.blame import EXPLAINS_MS
from rallypoint.server.core.effects import DesiredRun, DesiredStandby, Disconnect, Send
from rallypoint.server.core.model import (
    Activity,
    Consequence,
    JobSpec,
    Outcome,
    Phase,
    RoundReason,
    Verdict,
    VerdictCause,
)
from support.coordinator import Bench, consequence
from support.fake_agents import FakeAgent, finished, stop_reason, stopped_round, worker_exit

GRACE_MS = 500
LEASE_MS = 5_000
START_DUE_MS = 30_000
STOP_DUE_MS = 35_000

SPEC = JobSpec()


def trio(max_restarts: int = 3) -> tuple[Bench, FakeAgent, FakeAgent, FakeAgent]:
    """Return a bench with a started round of three nodes, of which two suffice."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3, max_restarts=max_restarts, grow=False))
    a, b, c = bench.run_round("a", "b", "c")
    return bench, a, b, c


def the_verdict(bench: Bench) -> Verdict:
    verdict = bench.job().verdict
    assert verdict is not None
    return verdict


def test_broken_stream_is_not_yet_a_death() -> None:
    """A node whose stream broke is lost when its grace ends, and not 1 ms before."""
    bench, a, _, c = trio()
    c.break_off()

    bench.advance(GRACE_MS - 1)
    assert (Phase.RUNNING, Activity.STARTED) == (bench.job().phase, c.the_node.activity)

    bench.advance(1)
    assert (RoundReason.NODE_LOST, None) == (stop_reason(a), c.node)
    assert Disconnect(c.session) in bench.effects


def test_return_within_the_grace_keeps_the_round() -> None:
    """A node that comes back in time goes on as if nothing had happened."""
    bench, a, _, c = trio()
    c.break_off()
    bench.advance(GRACE_MS - 1)
    revision, others = c.revision, a.revision

    c.hello(claim=c.claim())
    bench.advance(10 * GRACE_MS)

    assert (Phase.RUNNING, 1) == (bench.job().phase, len(bench.rounds()))
    assert (revision, others) == (c.revision, a.revision)


def test_return_tells_what_was_missed() -> None:
    """A node that was away while its round was stopped is told so on its return."""
    bench, a, _, c = trio()
    c.break_off()
    a.fail()

    c.hello(claim=c.claim())

    assert RoundReason.WORKER_FAILED is stop_reason(c)
    assert c.desired is not None
    assert Send(c.session, c.revision, c.desired) == bench.effects[-1]


def test_return_tells_what_the_coordinator_missed() -> None:
    """An exit that is in the snapshot of a Hello counts like one that was reported."""
    bench, a, _, c = trio()
    c.break_off()

    c.hello(claim=c.claim(Activity.FAILED, [worker_exit(5)]))
    bench.obey()

    assert (1, "c") == (bench.job().restart_count, the_verdict(bench).name)
    assert isinstance(a.desired, DesiredRun)


def test_run_that_did_not_arrive_is_sent_again() -> None:
    """A node that is Ready for an earlier round when it returns is told to run once more."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    _, b = bench.join("a", "b")
    b.break_off()

    b.hello(ready_round=0)

    assert (Activity.ASSIGNED, 1) == (b.the_node.activity, b.group_rank)


def test_member_that_returns_clean_ends_the_round() -> None:
    """A member that comes back with nothing running has left its round."""
    bench, a, _, c = trio()
    c.break_off()

    c.hello(ready_round=1)
    bench.obey()

    assert (2, 0) == (len(bench.rounds()), bench.job().restart_count)
    assert (RoundReason.NODE_LEFT, "c") == (bench.rounds()[-1].reason, the_verdict(bench).name)
    assert [0, 2] == [a.group_rank, c.group_rank]


def test_member_that_returns_stopping_ends_the_round() -> None:
    """A member that comes back stopping by itself has left its round, and is waited for."""
    bench, _, _, c = trio()
    c.break_off()

    c.hello(claim=c.claim(Activity.UNREADY))

    assert (RoundReason.NODE_LEFT, Phase.STOPPING) == (stop_reason(c), bench.job().phase)
    bench.obey()
    assert ["a", "b", "c"] == bench.order()


def test_newer_connection_outlives_the_break_of_an_older() -> None:
    """The break of an older connection says nothing about the newer one."""
    bench, _, _, c = trio()
    old = c.sender()
    c.hello(claim=c.claim())

    refused = bench.take(inputs.Broken(old))
    bench.advance(GRACE_MS)

    assert refused.refusal is not None
    assert Phase.RUNNING is bench.job().phase


def test_silent_node_is_lost_when_its_lease_ends() -> None:
    """A node that is silent for its lease is lost, and not 1 ms before."""
    bench, a, _, c = trio()
    bench.advance(1_000)
    c.fall_silent()

    bench.advance(LEASE_MS - 1)
    assert Phase.RUNNING is bench.job().phase

    bench.advance(1)
    assert (RoundReason.NODE_LOST, None) == (stop_reason(a), c.node)
    assert LEASE_MS == bench.now_ms - bench.job().lost[-1].at_ms


def test_heartbeats_renew_the_lease() -> None:
    """Nodes that say only that they live are kept for ever."""
    bench, *_ = trio()

    bench.advance(20 * LEASE_MS)

    assert (Phase.RUNNING, 3) == (bench.job().phase, len(bench.state.nodes))


def test_any_report_renews_the_lease() -> None:
    """A report counts as a sign of life, one that was taken already included."""
    bench, _, _, c = trio()
    c.fall_silent()
    bench.advance(LEASE_MS - 1)
    c.sequence -= 1
    c.start()

    bench.advance(LEASE_MS - 1)

    assert Phase.RUNNING is bench.job().phase


def test_lost_node_is_not_charged() -> None:
    """A round that lost a node is formed anew without it, and nothing is charged."""
    bench, a, b, c = trio(max_restarts=0)
    c.break_off()
    bench.advance(GRACE_MS)

    bench.obey()

    assert (0, 2, RoundReason.NODE_LOST) == (
        bench.job().restart_count,
        len(bench.rounds()),
        bench.rounds()[-1].reason,
    )
    assert [0, 1] == [a.group_rank, b.group_rank]
    assert (VerdictCause.NODE_LOST, "c", Consequence.REFORMED) == (
        the_verdict(bench).cause,
        the_verdict(bench).name,
        consequence(bench.job()),
    )


def test_lost_spare_stops_nothing() -> None:
    """A spare that is lost leaves the round alone."""
    bench, *_ = trio()
    (spare,) = bench.join("z")
    assert DesiredStandby(spare=True) == spare.desired

    spare.goodbye()

    assert (Phase.RUNNING, ["z"]) == (bench.job().phase, [d.name for d in bench.job().lost])


def test_lost_node_explains_a_failure_that_came_first() -> None:
    """A peer's failure that was reported just before the break is collateral and uncharged."""
    bench, a, b, c = trio()
    b.fail(worker_exit(1, said="connection reset by peer"))
    c.break_off()
    bench.advance(GRACE_MS)

    bench.obey()

    verdict = the_verdict(bench)
    assert (0, VerdictCause.NODE_LOST, "c", 1) == (
        bench.job().restart_count,
        verdict.cause,
        verdict.name,
        verdict.collateral_count,
    )
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

    assert charged == bench.job().restart_count


def test_silent_node_explains_failures_since_it_was_last_heard() -> None:
    """A node whose lease ends long after a failure explains it if it was silent before it."""
    bench, _, b, c = trio()
    bench.advance(1_000)
    c.fall_silent()
    bench.advance(200)
    b.fail(worker_exit(1, said="connection timed out"))

    bench.advance(LEASE_MS)
    bench.obey()

    assert (0, VerdictCause.NODE_LOST) == (bench.job().restart_count, the_verdict(bench).cause)


def test_node_that_fell_silent_later_explains_nothing() -> None:
    """A node that was heard more than a second after the failure did not cause it."""
    bench, _, b, c = trio()
    bench.advance(1_000)
    b.fail()
    bench.advance(EXPLAINS_MS + 1)
    c.heartbeat()
    c.fall_silent()

    bench.advance(LEASE_MS)
    bench.obey()

    assert (1, VerdictCause.WORKER_FAILED) == (bench.job().restart_count, the_verdict(bench).cause)


def test_node_that_was_clean_already_explains_nothing() -> None:
    """A node that is lost after its own Ready has nothing to do with the failure before."""
    bench, _, b, c = trio()
    b.fail()
    c.obey()
    c.break_off()
    bench.advance(GRACE_MS)

    bench.obey()

    assert (1, "b") == (bench.job().restart_count, the_verdict(bench).name)
    assert ["a", "b"] == bench.order()


def test_nobody_is_charged_while_a_member_may_still_be_lost() -> None:
    """While a silent member's lease runs, nothing is decided about a failure."""
    bench, a, b, c = trio(max_restarts=0)
    c.fall_silent()
    b.fail()
    bench.obey(a, b)

    bench.advance(LEASE_MS - 1)

    assert (Phase.STOPPING, None) == (bench.job().phase, bench.job().outcome)


def test_clean_member_that_breaks_off_is_waited_for() -> None:
    """A member that is clean and within its grace is on its way back: its slot is kept."""
    bench, a, b, c = trio()
    b.fail()
    c.obey()
    c.break_off()
    bench.obey(a, b)
    assert Phase.STOPPING is bench.job().phase

    c.hello()

    assert ["a", "b", "c"] == bench.order()


def test_node_that_comes_back_too_late_is_told_to_stop() -> None:
    """A node that was given up and comes back with its old round stops it and may join again."""
    bench, _, _, c = trio()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey()
    assert ["a", "b"] == bench.order()

    c.hello(claim=c.claim())

    assert 1 == stopped_round(c)
    bench.obey()
    assert DesiredStandby(spare=True) == c.desired


@pytest.mark.parametrize("waits_ms", [0, 1])
def test_member_that_does_not_stop_is_set_aside(waits_ms: int) -> None:
    """The next round waits for a member until grace + 5 s, and then goes on without it."""
    bench, a, b, c = trio()
    a.fail()
    bench.obey(a, b)

    bench.advance(STOP_DUE_MS - waits_ms)

    if waits_ms:
        assert Phase.STOPPING is bench.job().phase
        return
    assert (["a", "b"], True) == (bench.order(), c.the_node.set_aside)
    assert 1 == stopped_round(c)
    c.obey()
    assert (DesiredStandby(spare=True), False) == (c.desired, c.the_node.set_aside)


@pytest.mark.parametrize("waits_ms", [0, 1])
def test_member_that_does_not_start_is_set_aside(waits_ms: int) -> None:
    """A round whose members have not all started after 30 s is stopped and goes on without them."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3, grow=False))
    a, b, c = bench.join("a", "b", "c")
    bench.obey(a, b)

    bench.advance(START_DUE_MS - waits_ms)

    if waits_ms:
        assert Phase.RUNNING is bench.job().phase
        return
    assert RoundReason.START_OVERDUE is stop_reason(c)
    bench.obey(a, b)
    assert (["a", "b"], 0) == (bench.order(), bench.job().restart_count)
    assert (VerdictCause.START_OVERDUE, "c", "workers were not started in time on c") == (
        the_verdict(bench).cause,
        the_verdict(bench).name,
        the_verdict(bench).text,
    )


def test_started_round_has_no_start_deadline() -> None:
    """Once everybody has started, the start deadline is gone."""
    bench, *_ = trio()

    bench.advance(2 * START_DUE_MS)

    assert Phase.RUNNING is bench.job().phase


def test_blocked_member_is_not_waited_for() -> None:
    """A member with processes that survive SIGKILL is set aside at once, until it is Ready."""
    bench, a, b, c = trio()
    a.fail()
    bench.obey(a, b)

    c.block()

    assert ["a", "b"] == bench.order()
    assert 1 == stopped_round(c)
    c.obey()
    assert (Activity.READY, DesiredStandby(spare=True)) == (c.the_node.activity, c.desired)


def test_blocked_member_of_a_running_round_ends_it() -> None:
    """A member that stopped by itself and could not is no member any more."""
    bench, a, b, c = trio()

    c.block()
    bench.obey(a, b)

    assert (["a", "b"], 0) == (bench.order(), bench.job().restart_count)


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
    """Ten uncharged re-formations without progress are taken; the eleventh ends the run."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    a, _ = bench.run_round("a", "b")
    reform(bench, SPEC.max_reformations)
    assert (Phase.RUNNING, SPEC.max_reformations + 1) == (
        bench.job().phase,
        len(bench.rounds()),
    )

    reform(bench, 1)

    told = finished(a)
    assert told.verdict is not None
    assert (Outcome.FAILED, VerdictCause.NO_PROGRESS, "b") == (
        told.outcome,
        told.verdict.cause,
        told.verdict.name,
    )
    assert (
        "10 re-formations in a row without progress; the last one because node b left: "
        "it said goodbye"
    ) == told.verdict.text


def test_progress_renews_the_reformations() -> None:
    """After a round that lived for five minutes re-formations are counted from 0."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    bench.run_round("a", "b")
    reform(bench, 2)
    assert 2 == bench.job().reformations

    bench.advance(SPEC.progress_ms)
    reform(bench, 1)

    assert 1 == bench.job().reformations
