"""Nodes break off, resume, fall silent, or miss a deadline."""

from __future__ import annotations

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Disconnect, Send
from rallypoint.server.core.model.desired import DesiredRun, DesiredStandby
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import VerdictCause
from rallypoint.server.core.sessions.sessions import KEEPALIVE_MS
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, FakeAgent, stop_reason, stopped_round, worker_exit
from support.core.rounds import trio

GRACE_MS = 500
LEASE_MS = 5_000
START_DUE_MS = 30_000
STOP_DUE_MS = 35_000

SPEC = JobSpec()


def test_broken_stream_is_not_yet_a_death() -> None:
    """A node whose stream broke is lost when its grace period ends, not 1 ms earlier."""
    bench, a, _, c = trio()
    c.break_off()

    bench.advance(GRACE_MS - 1)
    assert (Phase.RUNNING, NodeState.STARTED) == (bench.job().phase, c.known_node.state)

    bench.advance(1)
    assert (RoundReason.NODE_LOST, None) == (stop_reason(a), c.node)
    assert Disconnect(c.session) in bench.effects


def test_lost_relay_is_not_a_lost_node() -> None:
    """A node whose relay is gone has a whole lease to come back, and the network is not suspected.

    So all nodes of a relay keep their round, and the grace of a node that breaks off by itself is
    as short as before.
    """
    bench, a, b, c = trio()
    for agent in (a, b, c):
        bench.take(inputs.Broken(agent.sender(), is_relay=True))
    bench.advance(LEASE_MS - 1)
    assert [True] * 3 == [agent.node is not None for agent in (a, b, c)]
    a.hello(held=a.held_round())
    b.hello(held=b.held_round())
    bench.advance(1)

    assert (RoundReason.NODE_LOST, None) == (stop_reason(a), c.node)
    b.break_off()
    bench.advance(GRACE_MS)
    assert b.node is None


def silent(spec: JobSpec, silent_ms: int) -> tuple[Bench, FakeAgent]:
    """Return a node of a running round whose connection is closed after so long a silence."""
    bench = Bench(spec)
    _, b = bench.run_round("a", "b")
    b.fall_silent()
    bench.advance(silent_ms)
    b.break_off()
    return bench, b


PATIENT_MS = 1_800_000


def test_lease_outlives_a_connection_that_keepalive_closes() -> None:
    """gRPC gives up a connection after 50 s without an answer; a longer lease still counts."""
    bench, b = silent(JobSpec(min_nodes=2, max_nodes=2, lease_ms=PATIENT_MS), 50_000)
    bench.advance(PATIENT_MS - 50_000 - 1)
    assert b.node is not None
    bench.advance(1)

    assert b.node is None
    (departure,) = bench.job().lost
    assert departure.text == "its connection broke and was not restored within 1800 s"


def test_node_that_was_silent_for_long_returns_to_its_round() -> None:
    """Its workers keep running, in the same round."""
    bench, b = silent(JobSpec(min_nodes=2, max_nodes=2, lease_ms=PATIENT_MS), 50_000)
    bench.advance(PATIENT_MS // 2)
    b.hello(held=b.held_round())
    bench.advance(1)

    assert (bench.job().phase, len(bench.rounds())) == (Phase.RUNNING, 1)


@pytest.mark.parametrize(
    ("spec", "silent_ms"),
    [
        pytest.param(
            JobSpec(min_nodes=2, max_nodes=2, lease_ms=PATIENT_MS), KEEPALIVE_MS - 1, id="sooner"
        ),
        pytest.param(
            JobSpec(min_nodes=2, max_nodes=2, lease_ms=PATIENT_MS, heartbeat_interval_ms=30_000),
            50_000,
            id="rare",
        ),
    ],
)
def test_break_that_keepalive_does_not_explain_is_a_death(spec: JobSpec, silent_ms: int) -> None:
    """It came too soon for that, or no heartbeat was due."""
    bench, b = silent(spec, silent_ms)
    bench.advance(GRACE_MS)

    assert b.node is None


def test_run_that_is_over_does_not_wait_for_silent_nodes() -> None:
    """Their connections are closed, and the next run may begin."""
    bench = Bench(JobSpec(min_nodes=1, max_nodes=1, lease_ms=PATIENT_MS))
    (a,) = bench.run_round("a")
    a.fall_silent()
    bench.take(inputs.CancelJob(JOB, 0, ""))
    bench.advance(50_000)
    a.break_off()
    bench.advance(GRACE_MS)

    assert a.node is None


def test_return_within_the_grace_keeps_the_round() -> None:
    """A node that resumes in time continues without any change."""
    bench, a, _, c = trio()
    c.break_off()
    bench.advance(GRACE_MS - 1)
    revision, others = c.revision, a.revision

    c.hello(held=c.held_round())
    bench.advance(10 * GRACE_MS)

    assert (Phase.RUNNING, 1) == (bench.job().phase, len(bench.rounds()))
    assert (revision, others) == (c.revision, a.revision)


def test_return_tells_what_was_missed() -> None:
    """A node that was away while its round stopped gets the stop on its return."""
    bench, a, _, c = trio()
    c.break_off()
    a.fail()

    c.hello(held=c.held_round())

    assert RoundReason.WORKER_FAILED is stop_reason(c)
    assert c.desired is not None
    assert Send(c.session, c.revision, c.desired) == bench.effects[-1]


def test_return_tells_what_the_coordinator_missed() -> None:
    """An exit in the held round of a Hello counts like a reported one."""
    bench, a, _, c = trio()
    c.break_off()

    c.hello(held=c.held_round(NodeState.FAILED, [worker_exit(5)]))
    bench.obey()

    assert (1, "c") == (bench.job().counts.restart_count, bench.the_verdict().name)
    assert isinstance(a.desired, DesiredRun)


def test_run_that_did_not_arrive_is_sent_again() -> None:
    """A node that returns Ready for an earlier round gets the order to run again."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    _, b = bench.join("a", "b")
    b.break_off()

    b.hello(ready_round=0)

    assert (NodeState.ASSIGNED, 1) == (b.known_node.state, b.group_rank)


def test_member_that_returns_clean_ends_the_round() -> None:
    """A member that resumes with nothing running has left its round."""
    bench, a, _, c = trio()
    c.break_off()

    c.hello(ready_round=1)
    bench.obey()

    assert (2, 0) == (len(bench.rounds()), bench.job().counts.restart_count)
    assert (RoundReason.NODE_LEFT, "c") == (bench.rounds()[-1].reason, bench.the_verdict().name)
    assert [0, 2] == [a.group_rank, c.group_rank]


def test_member_that_returns_stopping_ends_the_round() -> None:
    """A member that resumes while it stops by itself has left its round; the round waits for it."""
    bench, _, _, c = trio()
    c.break_off()

    c.hello(held=c.held_round(NodeState.UNREADY))

    assert (RoundReason.NODE_LEFT, Phase.STOPPING) == (stop_reason(c), bench.job().phase)
    bench.obey()
    assert ["a", "b", "c"] == bench.order()


def test_draining_member_that_returns_stopping_is_drained() -> None:
    """The time of the drain has passed while it could not be heard."""
    bench, _, _, c = trio()
    c.drain(1_000)
    c.break_off()

    c.hello(held=c.held_round(NodeState.UNREADY))

    assert (RoundReason.DRAINED, Phase.STOPPING) == (stop_reason(c), bench.job().phase)
    round = bench.job().round
    assert round is not None
    assert ["SIGTERM; it stopped its workers by itself"] == [gone.text for gone in round.departures]


def test_newer_connection_outlives_the_break_of_an_older() -> None:
    """The break of an older connection does not affect the newer one."""
    bench, _, _, c = trio()
    old = c.sender()
    c.hello(held=c.held_round())

    refused = bench.take(inputs.Broken(old))
    bench.advance(GRACE_MS)

    assert refused.refusal is not None
    assert Phase.RUNNING is bench.job().phase


def test_silent_node_is_lost_when_its_lease_ends() -> None:
    """A node that is silent for its lease is lost, not 1 ms earlier."""
    bench, a, _, c = trio()
    bench.advance(1_000)
    c.fall_silent()

    bench.advance(LEASE_MS - 1)
    assert Phase.RUNNING is bench.job().phase

    bench.advance(1)
    assert (RoundReason.NODE_LOST, None) == (stop_reason(a), c.node)
    assert LEASE_MS == bench.now_ms - bench.job().lost[-1].at_ms


def test_heartbeats_renew_the_lease() -> None:
    """Heartbeats alone keep a node for ever."""
    bench, *_ = trio()

    bench.advance(20 * LEASE_MS)

    assert (Phase.RUNNING, 3) == (bench.job().phase, len(bench.state.nodes))


def test_any_report_renews_the_lease() -> None:
    """Every report renews the lease, even a repeated one."""
    bench, _, _, c = trio()
    c.fall_silent()
    bench.advance(LEASE_MS - 1)
    c.sequence -= 1
    c.start()

    bench.advance(LEASE_MS - 1)

    assert Phase.RUNNING is bench.job().phase


def test_clean_member_that_breaks_off_is_waited_for() -> None:
    """A clean member in its grace period keeps its slot."""
    bench, a, b, c = trio()
    b.fail()
    c.obey()
    c.break_off()
    bench.obey(a, b)
    assert Phase.STOPPING is bench.job().phase

    c.hello()

    assert ["a", "b", "c"] == bench.order()


def test_node_that_comes_back_too_late_is_told_to_stop() -> None:
    """A lost node that comes back with its old round stops it and can join again."""
    bench, _, _, c = trio()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey()
    assert ["a", "b"] == bench.order()

    c.hello(held=c.held_round())

    assert 1 == stopped_round(c)
    bench.obey()
    assert DesiredStandby(spare=True) == c.desired


@pytest.mark.parametrize("waits_ms", [0, 1])
def test_member_that_does_not_stop_is_set_aside(waits_ms: int) -> None:
    """The next round waits for a member until 5 s after the shutdown timeout, no longer."""
    bench, a, b, c = trio()
    a.fail()
    bench.obey(a, b)

    bench.advance(STOP_DUE_MS - waits_ms)

    if waits_ms:
        assert Phase.STOPPING is bench.job().phase
        return
    assert (["a", "b"], True) == (bench.order(), c.known_node.set_aside)
    assert 1 == stopped_round(c)
    c.obey()
    assert (DesiredStandby(spare=True), False) == (c.desired, c.known_node.set_aside)


@pytest.mark.parametrize("waits_ms", [0, 1])
def test_member_that_does_not_start_is_set_aside(waits_ms: int) -> None:
    """A round with members that have not started after 30 s is re-formed without them."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3, grow=False))
    a, b, c = bench.join("a", "b", "c")
    bench.obey(a, b)

    bench.advance(START_DUE_MS - waits_ms)

    if waits_ms:
        assert Phase.RUNNING is bench.job().phase
        return
    assert RoundReason.START_OVERDUE is stop_reason(c)
    bench.obey(a, b)
    assert (["a", "b"], 0) == (bench.order(), bench.job().counts.restart_count)
    assert (VerdictCause.START_OVERDUE, "c", "the workers on c did not start in time") == (
        bench.the_verdict().cause,
        bench.the_verdict().name,
        bench.the_verdict().text,
    )


def test_started_round_has_no_start_deadline() -> None:
    """The start deadline is gone once all members have started."""
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
    assert (NodeState.READY, DesiredStandby(spare=True)) == (c.known_node.state, c.desired)


def test_blocked_member_of_a_running_round_ends_it() -> None:
    """A member that fails to stop by itself is no longer a member."""
    bench, a, b, c = trio()

    c.block()
    bench.obey(a, b)

    assert (["a", "b"], 0) == (bench.order(), bench.job().counts.restart_count)
