"""Reports at unusual moments, resumed sessions, and many breaks at once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Acknowledge, Refuse
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.desired import DesiredRun, DesiredStop
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.network import SLOT_MS, WITHIN_MS, NetworkSuspicion, note_break
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import VerdictCause
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from rallypoint.server.core.rounds.rounds import EXIT_DUE_MS
from rallypoint.server.core.state.state import NO_CHANGES
from rallypoint.server.core.verdicts.folding import RANGES_MAX, Status, fold, unfold
from support.core.adoption import WINDOW_MS, orphans
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, stop_reason, worker_exit
from support.core.rounds import trio

# --- Reports at unusual moments: after a stop, after a success, in a Hello, twice ---

GRACE_MS = 500


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


def test_return_during_a_stop_is_no_departure() -> None:
    """A member that resumes while it stops as ordered explains nothing."""
    bench, _, b, c = trio()
    b.fail()
    c.break_off()

    c.hello(held=c.held_round(NodeState.UNREADY))
    bench.obey()

    assert (1, ["a", "b", "c"]) == (bench.job().counts.restart_count, bench.order())


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


def test_clean_node_that_something_keeps_from_rounds_is_in_none() -> None:
    """It is READY and says what keeps it: no round begins with it until it is READY again."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
    (a,) = bench.join("a")
    a.block("its helper process 4711 does not answer")
    bench.join("b")

    assert [] == bench.rounds()
    a.ready()
    assert ["a", "b"] == bench.order()


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


# --- Who may continue the session of a node that the coordinator knows ---

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


# --- A worker that records an error and then ends with 0 by itself has survived the error ---

NAN = "ValueError: loss is nan"


def recorded(local_rank: int = 0) -> WorkerExit:
    """Return the failure of a running worker that has just recorded its error."""
    error = ErrorRecord(NAN, "", 0)
    return WorkerExit(local_rank, 4_000 + local_rank, None, None, ran_ms=60_000, error=error)


def pair(durable: bool = False) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a bench with a started round of two nodes with 2 workers each."""
    bench = Bench(JobSpec(2, 2, max_restarts=3, restart_backoff_ms=0), durable=durable)
    a, b = bench.run_round("a", "b", workers=2)
    return bench, a, b


def succeed(agent: FakeAgent, *local_ranks: int) -> None:
    for local_rank in local_ranks:
        agent.exit(worker_exit(0, local_rank=local_rank))
    agent.succeed()


@pytest.mark.parametrize("wait_ms", [0, EXIT_DUE_MS - 1])
def test_round_runs_on_and_succeeds(wait_ms: int) -> None:
    """However long the worker takes to end before the stop: nothing of the failure is left."""
    bench, a, b = pair()
    a.record(recorded())
    bench.advance(wait_ms)
    assert VerdictCause.WORKER_FAILED is bench.the_verdict().cause

    a.exit(worker_exit(0))

    round = bench.job().round
    assert round is not None and (Phase.RUNNING, None) == (bench.job().phase, bench.job().verdict)
    assert ((), 0, (), None) == (
        round.failures,
        round.failure_count,
        round.failure_groups,
        round.first_failure_ms,
    )
    assert (NodeState.STARTED, "verdict_corrected") == (a.known_node.state, bench.events()[-1])
    bench.advance(EXIT_DUE_MS)
    assert isinstance(b.desired, DesiredRun)
    succeed(a, 1)
    succeed(b, 0, 1)
    assert (Outcome.SUCCEEDED, None) == (bench.job().outcome, bench.job().verdict)
    bench.check_journal()


def test_stop_that_was_decided_remains() -> None:
    """A worker that ends with 0 while the stop is on its way was what stopped the round."""
    bench, a, b = pair()
    a.record(recorded())
    bench.advance(EXIT_DUE_MS)

    a.exit(worker_exit(0))

    assert isinstance(b.desired, DesiredStop)
    assert NodeState.FAILED is a.known_node.state
    assert "was reported first: error recorded, then exit code 0" in bench.the_verdict().text
    bench.obey()
    assert 1 == bench.job().counts.restart_count


def test_other_failures_remain() -> None:
    """The verdict names the one that has failed; the survivor is no part of it."""
    bench, a, b = pair()
    a.record(recorded(), recorded(1))
    bench.advance(100)
    b.record(recorded())
    assert 0 == bench.the_verdict().culprit.rank  # type: ignore[union-attr]

    a.exit(worker_exit(0), worker_exit(0, local_rank=1))

    verdict = bench.the_verdict()
    assert verdict.culprit is not None and (2, 0) == (
        verdict.culprit.rank,
        verdict.collateral_count,
    )
    assert [(2, 2)] == [span for group in verdict.groups for span in group.ranks]
    bench.advance(EXIT_DUE_MS)
    assert isinstance(a.desired, DesiredStop)


def test_node_with_another_failure_stays_failed() -> None:
    """One of two failed workers of a node has survived its error."""
    bench, a, _ = pair()
    a.record(recorded(), recorded(1))

    a.exit(worker_exit(0))

    assert (NodeState.FAILED, Phase.RUNNING) == (a.known_node.state, bench.job().phase)


def test_earlier_verdict_of_the_run_is_shown_again() -> None:
    """Readers see the latest round that failed."""
    bench, a, _ = pair()
    a.fail(worker_exit(3))
    bench.obey()
    first = bench.the_verdict()
    a.record(recorded())
    assert first.text != bench.the_verdict().text

    a.exit(worker_exit(0))

    assert first.text == bench.the_verdict().text


def test_survivor_of_a_coordinator_that_started_again() -> None:
    """The journal knows the failure; the Hello says that the worker has ended with 0."""
    bench, a, b = pair(durable=True)
    a.record(recorded())
    bench.restart()
    assert 1 == bench.job().round.failure_count  # type: ignore[union-attr]

    a.hello(held=a.held_round(NodeState.STARTED, [worker_exit(0)]))
    b.hello(held=b.held_round())

    assert (Phase.RUNNING, None) == (bench.job().phase, bench.job().verdict)
    bench.advance(EXIT_DUE_MS)
    assert isinstance(b.desired, DesiredRun)
    bench.check_journal()


def test_survivor_before_the_adoption() -> None:
    """An unknown round is adopted as it is by then, and not as one that could not start."""
    bench, agents = orphans()
    a, b, c = agents
    a.hello(held=a.held_round(NodeState.FAILED, [recorded()]))
    for agent in (b, c):
        agent.hello(held=agent.held_round())
    a.exit(worker_exit(0))
    bench.advance(WINDOW_MS)

    assert (Phase.RUNNING, None) == (bench.job().phase, bench.job().verdict)


def test_unfolded_failure_leaves_its_group() -> None:
    """Its rank and its count are gone, and so is a group without others."""
    status = Status()
    groups = fold((), rank=3, ended="x", status=status, error="bad", is_victim=False)
    more = fold(groups, rank=4, ended="x", status=status, error="bad", is_victim=False)

    assert groups == unfold(more, 4)
    assert () == unfold(groups, 3)


def test_failure_that_no_group_shows_cannot_be_unfolded() -> None:
    """Neither one beyond the limit, nor one whose removal would exceed it."""
    status = Status()
    groups = fold((), rank=0, ended="x", status=status, error="bad", is_victim=False)
    full = (replace(groups[0], ranks=tuple((n, n + 2) for n in range(0, 4 * RANGES_MAX, 4))),)

    assert unfold(groups, 9) is None
    assert unfold(full, 1) is None


# --- Many breaks at once, or a stalled coordinator, make the network suspect, not the nodes ---

LEASE_MS = 5_000


def crowd(size: int) -> tuple[Bench, tuple[FakeAgent, ...]]:
    """Return a bench with a started round of so many nodes."""
    bench = Bench(JobSpec(min_nodes=1, max_nodes=size, grow=False))
    return bench, bench.run_round(*(f"n{number}" for number in range(size)))


def lost(bench: Bench) -> list[str]:
    return [str(departure.name) for departure in bench.job().lost]


@pytest.mark.parametrize(
    ("size", "breaking", "suspected"),
    [(4, 2, False), (4, 3, True), (12, 3, True), (13, 3, False), (13, 4, True)],
)
def test_three_sessions_and_a_quarter_of_all(size: int, breaking: int, suspected: bool) -> None:
    """Three breaks that are a quarter of all sessions make the network suspect; fewer do not."""
    bench, agents = crowd(size)
    for agent in agents[:breaking]:
        agent.break_off()

    bench.advance(GRACE_MS)

    assert ([] if suspected else [f"n{number}" for number in range(breaking)]) == lost(bench)


def jobs(count: int, size: int) -> tuple[Bench, list[tuple[FakeAgent, ...]]]:
    """Return a bench with so many jobs, each with a started round of so many nodes."""
    bench = Bench(JobSpec(min_nodes=1, max_nodes=size, grow=False))
    names = [f"n{number}" for number in range(size)]
    return bench, [bench.run_round(*names, job_id=f"job{number}") for number in range(count)]


def is_harmed(bench: Bench, job: int) -> bool:
    return bool(bench.job(f"job{job}").lost)


@pytest.mark.parametrize(
    ("count", "breaking", "suspected"), [(4, 2, False), (4, 3, True), (13, 3, False), (12, 3, True)]
)
def test_three_jobs_and_a_quarter_of_all(count: int, breaking: int, suspected: bool) -> None:
    """Small jobs that break together make the network suspect for all jobs; fewer do not."""
    bench, all_agents = jobs(count, size=2)
    for agents in all_agents[:breaking]:
        agents[0].break_off()

    bench.advance(GRACE_MS)

    assert [not suspected] * breaking == [is_harmed(bench, job) for job in range(breaking)]


def test_churn_of_one_job_harms_no_other() -> None:
    """However often a job's sessions come and go, another job's failure is noticed at once."""
    bench, ((a, _),) = jobs(1, size=2)
    for _ in range(10):
        strangers = bench.join("s1", "s2", "s3", "s4", job_id="stranger", explicit=False)
        for stranger in strangers:
            stranger.break_off()
        bench.advance(WITHIN_MS // 4)
    a.break_off()

    bench.advance(GRACE_MS)

    assert is_harmed(bench, 0)


def test_suspected_break_ends_with_a_lease() -> None:
    """The nodes are lost a lease after their break, not 1 ms earlier."""
    bench, agents = crowd(4)
    for agent in agents[:3]:
        agent.break_off()

    bench.advance(LEASE_MS - 1)
    assert (Phase.RUNNING, []) == (bench.job().phase, lost(bench))

    bench.advance(1)
    assert ["n0", "n1", "n2"] == lost(bench)
    assert "was not restored within 5 s" in bench.job().lost[0].text


def test_break_shortly_before_the_third_counts() -> None:
    """A node still in its grace period when the third stream breaks gets its lease too."""
    bench, (a, b, c, _) = crowd(4)
    a.break_off()
    bench.advance(GRACE_MS - 1)
    b.break_off()
    c.break_off()

    bench.advance(LEASE_MS - GRACE_MS)
    assert [] == lost(bench)

    bench.advance(1)
    assert ["n0"] == lost(bench)


def test_further_break_while_it_lasts() -> None:
    """A single break during the suspicion gets its lease; after it, only the grace period."""
    bench, (a, b, c, d) = crowd(4)
    for agent in (a, b, c):
        agent.break_off()
        agent.hello(held=agent.held_round())
    bench.advance(LEASE_MS - 2 * GRACE_MS)
    d.break_off()
    bench.advance(GRACE_MS)
    assert [] == lost(bench)
    d.hello(held=d.held_round())

    bench.advance(LEASE_MS)
    d.break_off()
    bench.advance(GRACE_MS)
    assert ["n3"] == lost(bench)


def test_all_that_come_back_keep_their_round() -> None:
    """No round stops when all nodes come back within the lease."""
    bench, agents = crowd(8)
    for agent in agents:
        agent.break_off()
    bench.advance(LEASE_MS - 1)
    for agent in agents:
        agent.hello(held=agent.held_round())
    bench.advance(10 * LEASE_MS)

    assert (Phase.RUNNING, 1, 0) == (
        bench.job().phase,
        len(bench.rounds()),
        bench.job().counts.restart_count,
    )


def test_breaks_that_are_spread_out_are_deaths() -> None:
    """Three breaks spread over more than a second are three lost nodes."""
    bench, agents = crowd(4)
    for agent in agents[:3]:
        agent.break_off()
        bench.advance(WITHIN_MS // 2)

    assert ["n0", "n1", "n2"] == lost(bench)


@pytest.mark.parametrize(("late_ms", "suspected"), [(LEASE_MS // 2, True), (2_499, False)])
def test_stream_that_breaks_after_a_stall_has_its_lease(late_ms: int, suspected: bool) -> None:
    """After a long stall, a break gets its lease: the agents may have given up the stream."""
    bench, (a, _) = crowd(2)
    bench.take(inputs.Stalled(late_ms))
    a.break_off()

    bench.advance(GRACE_MS)

    assert ([] if suspected else ["n0"]) == lost(bench)


def test_grace_that_runs_through_a_stall_becomes_a_lease() -> None:
    """A node that disconnected just before a stall is not lost just after it."""
    bench, (a, _) = crowd(2)
    a.break_off()
    bench.advance(GRACE_MS - 1)
    bench.take(inputs.Stalled(10_000))

    bench.advance(LEASE_MS - GRACE_MS)
    assert [] == lost(bench)

    bench.advance(1)
    assert ["n0"] == lost(bench)


@pytest.mark.parametrize("min_nodes", [1, 5])
def test_wait_says_that_the_network_is_suspected(min_nodes: int) -> None:
    """The wait names the nodes, both while a round runs and while one forms."""
    bench = Bench(JobSpec(min_nodes=min_nodes, max_nodes=5))
    agents = bench.join("n0", "n1", "n2", "n3")
    bench.advance(bench.spec.last_call_ms)
    bench.obey()
    for agent in agents[:2]:
        agent.break_off()
    before = bench.wait()
    agents[2].break_off()
    waiting = bench.the_wait()

    assert before is None or before.kind is WaitKind.RETURNING
    assert (WaitKind.NETWORK_SUSPECTED, ["n0", "n1", "n2"]) == (
        waiting.kind,
        [awaited.name for awaited in waiting.awaited],
    )
    assert "many connections broke at once" in waiting.text
    assert ["network_suspected"] == [event for event in bench.events() if "network" in event]


def test_what_is_kept_of_breaks_has_a_limit() -> None:
    """For any number of breaks, one second of slots is kept, and the count is right."""
    suspicion = NetworkSuspicion()
    for at_ms in range(0, 10 * WITHIN_MS, 7):
        suspicion = note_break(suspicion, 1_000_000, at_ms, LEASE_MS)
        recent = sum(slot_ms > at_ms - WITHIN_MS for slot_ms in _slots(at_ms))

        assert len(suspicion.slots) <= WITHIN_MS // SLOT_MS
        assert recent == suspicion.breaks()
    assert not suspicion.is_active(10 * WITHIN_MS)


def _slots(until_ms: int) -> list[int]:
    return [at_ms - at_ms % SLOT_MS for at_ms in range(0, until_ms + 1, 7)]
