"""What the coordinator knows of nodes outlives its start: health, drains, spares, fences."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.desired import (
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
)
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.node import Eligibility, NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.model.verdict import VerdictCause
from rallypoint.server.core.rounds.fences import SLACK_MS
from rallypoint.server.core.step import Transition
from support.core.adoption import WINDOW_MS
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, come_back, finished
from support.core.health import SPEC, cordon, fail_again, health

PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=1)
LEASE_MS = Timing().lease_ms


def begun(spec: JobSpec = PAIR) -> Bench:
    """Return a durable coordinator that has served for a while."""
    bench = Bench(spec, durable=True)
    bench.advance(10_000)
    return bench


def logged(bench: Bench, reason: str) -> int:
    """Return the number of events of a kind in the journal."""
    return sum(event.reason == reason for event in bench.state.events.kept())


def kind_of(transition: Transition) -> RefusalKind | None:
    """Return why an input was refused."""
    return None if transition.refusal is None else transition.refusal.kind


def test_spare_stays_a_spare() -> None:
    """And takes the place of a member that does not return."""
    bench = begun()
    a, b, c = (*bench.run_round("a", "b"), *bench.join("c"))

    bench.restart()
    for agent in (c, a):
        come_back(agent)
    assert DesiredStandby(spare=True) == c.desired
    bench.advance(LEASE_MS)
    bench.obey(a, c)

    assert ["a", "c"] == bench.order()
    assert b.node is None


def test_agents_of_a_shard_that_has_moved_have_time_to_find_it() -> None:
    """They count as lost only after a lease and the time for the search."""
    bench = Bench(PAIR, durable=True, timing=Timing(search_ms=3_000))
    bench.advance(10_000)
    a, b = bench.run_round("a", "b")

    bench.restart()
    come_back(a)
    bench.advance(LEASE_MS + 2_999)
    assert Phase.RUNNING is bench.job().phase
    bench.advance(1)

    assert isinstance(a.desired, DesiredStop)
    assert b.node is None


def test_cordon_and_its_reason_stay() -> None:
    """A cordoned node gets no place, whether it was there or not."""
    bench = begun(SPEC)
    a, b = bench.run_round("a", "b")
    cordon(bench, "b", "bad disk")

    bench.restart()
    for agent in (a, b):
        come_back(agent)
    assert Eligibility.CORDONED is b.known_node.eligibility
    a.fail()
    bench.obey()

    assert "bad disk" == health(bench, "b").reason
    assert Phase.FORMING is bench.job().phase


def test_quarantine_ends_in_time() -> None:
    """It stands while the coordinator is away, and its end is announced once."""
    bench = begun(replace(SPEC, max_nodes=3, quarantine_after=1))
    agents = bench.run_round("a", "b", "sick")
    fail_again(bench, agents[2], 1)
    until_ms = health(bench, "sick").quarantined_until_ms

    bench.restart()
    for agent in agents:
        come_back(agent)
    found = []
    for wait_ms in (until_ms - bench.now_ms - 1, 1):
        bench.advance(wait_ms)
        found.append(agents[2].known_node.eligibility)

    assert [Eligibility.QUARANTINED, Eligibility.ELIGIBLE] == found
    assert 1 == logged(bench, "quarantine_ended")


def test_end_of_a_quarantine_survives_two_deaths_in_a_row() -> None:
    """The second process dies after its first batch, before it has looked at anything."""
    bench = begun(replace(SPEC, max_nodes=3, quarantine_after=1))
    agents = bench.run_round("a", "b", "sick")
    fail_again(bench, agents[2], 1)
    bench.now_ms = health(bench, "sick").quarantined_until_ms - 1

    for _ in range(2):
        bench.restart()

    assert 1 == logged(bench, "quarantine_ended")


def test_request_that_is_repeated_in_a_first_window_was_done() -> None:
    """It was carried out, the answer was lost, and the window began again."""
    bench = Bench(PAIR, durable=True, window_ms=WINDOW_MS)
    bench.advance(WINDOW_MS)
    request = inputs.CreateJob(JobId("other"), PAIR, request_id="r")
    assert bench.take(request).refusal is None

    bench.restart()
    assert bench.state.window_until_ms > bench.now_ms

    assert bench.take(request).refusal is None
    assert bench.take(replace(request, request_id="s")).refusal == Refusal(RefusalKind.NOT_READY)


def test_name_of_a_node_that_may_return_is_not_taken_over() -> None:
    """Its agent may be well, and on its way. When it does not come in time, another one may."""
    bench = begun()
    a, b = bench.run_round("a", "b")
    names = [bench.agent(name) for name in ("a", "b")]

    bench.restart()
    come_back(a)
    assert RefusalKind.NODE_NAME_IN_USE is kind_of(names[0].hello())
    assert RefusalKind.NOT_READY is kind_of(names[1].hello())
    assert "b" == b.known_node.name
    bench.advance(LEASE_MS)

    assert b.node is None
    assert names[1].hello().refusal is None
    assert (
        "did not return within 5 s after the coordinator started again" in bench.job().lost[0].text
    )


def test_node_rank_of_a_node_that_may_return_is_not_taken_over() -> None:
    """Like its name."""
    bench = begun()
    agents = [bench.agent(name, node_rank=rank) for rank, name in enumerate("ab")]
    for agent in agents:
        agent.hello()
    bench.obey()

    bench.restart()
    assert RefusalKind.NOT_READY is kind_of(bench.agent("x", node_rank=1).hello())


def test_failures_before_the_start_count_towards_a_quarantine() -> None:
    """Two before, one after."""
    bench = begun(SPEC)
    a, b = bench.run_round("a", "b")
    fail_again(bench, a, 2)

    bench.restart()
    for agent in (a, b):
        come_back(agent)
    fail_again(bench, a, 1)

    assert 1 == health(bench, "a").quarantines


def test_drain_of_an_operator_goes_on() -> None:
    """With the time that is left; the same request is answered as before."""
    bench = begun(replace(PAIR, min_nodes=1))
    a, b = bench.run_round("a", "b")
    drain = inputs.DrainNode(JobId(JOB), NodeName("b"), 30_000, "maintenance", "r")
    bench.take(drain)
    until_ms = bench.now_ms + 30_000

    bench.restart()
    for agent in (a, b):
        come_back(agent)
    assert isinstance(b.desired, DesiredRun) and b.desired.drain is not None
    assert (until_ms, "maintenance") == (b.desired.drain.until_ms, b.desired.drain.reason)
    assert bench.take(drain).refusal is None
    assert until_ms == b.desired.drain.until_ms
    bench.advance(until_ms - bench.now_ms)
    bench.obey()

    assert ["a"] == bench.order()
    assert isinstance(b.desired, DesiredReleased)
    assert 1 == bench.events().count("drain_started")


def test_drain_that_an_agent_announced_goes_on() -> None:
    """It has the rest of its time."""
    bench = begun(replace(PAIR, min_nodes=1))
    a, b = bench.run_round("a", "b")
    b.drain(3_000)

    bench.restart()
    for agent in (a, b):
        come_back(agent)
    bench.advance(2_998)
    assert Phase.RUNNING is bench.job().phase
    bench.advance(1)
    assert Phase.STOPPING is bench.job().phase
    bench.obey()

    assert ["a"] == bench.order()
    assert VerdictCause.NODE_LEFT is bench.the_verdict().cause


def test_notices_of_growth_do_not_outlive_their_reason() -> None:
    """The newcomer has gone while the coordinator was away; members learn that nothing happens."""
    bench = begun(replace(PAIR, max_nodes=3))
    a, b = bench.run_round("a", "b")
    bench.join("c")
    before = bench.job().round
    assert before is not None and before.notices

    bench.restart()
    for agent in (a, b):
        come_back(agent)
    bench.advance(200_000)

    round = bench.job().round
    assert round is not None and (1, ()) == (round.header.number, round.notices)


def test_fence_goes_on() -> None:
    """No round begins before the workers of a lost node are certainly dead."""
    bench = begun(replace(PAIR, min_nodes=1, fence_after_ms=20_000))
    a, b = bench.run_round("a", "b")
    b.break_off()
    broke_ms = bench.now_ms
    bench.advance(1_000)
    bench.obey(a)
    assert WaitKind.FENCE is bench.the_wait().kind

    bench.restart()
    come_back(a)
    assert WaitKind.FENCE is bench.the_wait().kind
    bench.advance(broke_ms + 20_000 + SLACK_MS - 1 - bench.now_ms)
    assert Phase.FORMING is bench.job().phase
    bench.advance(1)

    assert Phase.RUNNING is bench.job().phase


def test_node_that_was_overdue_is_not_waited_for_again() -> None:
    """It was set aside before the start; the round of the others begins without it."""
    bench = begun(replace(PAIR, min_nodes=1))
    a, b = bench.run_round("a", "b")
    a.fail()
    a.ready()
    due_ms = PAIR.shutdown_timeout_ms + Timing().stop_slack_ms
    bench.advance(due_ms)
    assert ["a"] == bench.order()

    bench.restart()
    come_back(a)
    come_back(b)

    assert b.known_node.set_aside
    assert isinstance(b.desired, DesiredStop)


def test_wait_for_a_node_names_what_keeps_it() -> None:
    """As before the start: its agent does not repeat it."""
    bench = begun()
    a, b = bench.run_round("a", "b")
    a.block("no space left on device")
    bench.obey(b)
    assert "no space left on device" in bench.the_wait().text

    bench.restart()
    for agent in (a, b):
        come_back(agent, NodeState.BLOCKED)

    assert "no space left on device" in bench.the_wait().text


def test_budget_pause_and_streak_go_on() -> None:
    """The pause ends when it would have ended; the next failure counts on."""
    bench = begun(replace(PAIR, max_restarts=9, crash_loop=0, restart_backoff_ms=10_000))
    a, b = bench.run_round("a", "b")
    for _ in range(3):
        a.fail()
        bench.obey()
    counts, until_ms = bench.job().counts, bench.job().backoff_until_ms
    assert WaitKind.BACKOFF is bench.the_wait().kind

    bench.restart()
    for agent in (a, b):
        come_back(agent)
    assert (WaitKind.BACKOFF, counts) == (bench.the_wait().kind, bench.job().counts)
    bench.advance(until_ms - 1 - bench.now_ms)
    assert Phase.FORMING is bench.job().phase
    bench.advance(1)
    bench.obey()
    a.fail()

    assert 4 == bench.job().counts.streak + (bench.job().phase is Phase.STOPPING)


def test_outcome_reaches_agents_that_had_not_learned_it() -> None:
    """The run has ended while an agent was away, or just before the coordinator died."""
    bench = begun()
    a, b = bench.run_round("a", "b")
    a.succeed()
    b.break_off()
    bench.take(inputs.CancelJob(JobId(JOB), 0, "enough"))

    bench.restart()
    for agent in (a, b):
        come_back(agent)

    assert Outcome.CANCELLED is finished(a).outcome is finished(b).outcome
    assert "enough" in bench.the_verdict().text
    for agent in (a, b):
        agent.goodbye()
    assert {} == bench.state.nodes


def test_launch_of_a_run_is_known() -> None:
    """An agent of the launch gets the outcome, one of another launch begins the next run."""
    bench = begun()
    bench.run_round("a", "b", launch_id="first")
    bench.take(inputs.CancelJob(JobId(JOB), 0, ""))
    for agent in tuple(bench.agents.values()):
        agent.goodbye()

    bench.restart()
    (late,) = bench.join("late", launch_id="first")
    assert Outcome.CANCELLED is finished(late).outcome
    late.goodbye()
    bench.join("new", launch_id="second")

    assert (2, "second") == (bench.job().run, bench.job().launch_id)


def test_name_of_a_node_that_is_away_is_kept_for_it() -> None:
    """Another agent takes a name that the journal knows only if it was given explicitly."""
    bench = begun(replace(PAIR, min_nodes=1, max_nodes=4))
    (first,) = bench.join("n", explicit=False)

    bench.restart()
    (second,) = bench.join("n", explicit=False)
    come_back(first)

    assert ("n", "n-2") == (first.known_node.name, second.known_node.name)


def test_session_needs_its_token_once_it_has_shown_it() -> None:
    """Until an agent has returned with its token, the id of its session is enough."""
    bench = begun()
    a, _ = bench.run_round("a", "b")
    bench.restart()
    come_back(a)
    assert a.known_node.is_heard

    refusal = a.hello(held=a.held_round(), is_proven=False).refusal

    assert refusal is not None and RefusalKind.NOT_PROVEN is refusal.kind
