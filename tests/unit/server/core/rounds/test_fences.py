"""With a fence, no round begins while workers of a lost node may still run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rallypoint.server.core.fences import FENCES_MAX, SLACK_MS
from rallypoint.server.core.model import Activity, JobSpec, Phase, WaitKind
from rallypoint.server.core.state import Timing
from support.coordinator import Bench
from support.fake_agents import FakeAgent, stopped_round

GRACE_MS = 500
LEASE_MS = 5_000
FENCE_MS = 20_000
SPEC = JobSpec(min_nodes=1, max_nodes=3, grow=False, grace_ms=2_000, fence_ms=FENCE_MS)


def trio(spec: JobSpec = SPEC) -> tuple[Bench, FakeAgent, FakeAgent, FakeAgent]:
    """Return a bench with a started round of three nodes."""
    bench = Bench(spec)
    a, b, c = bench.run_round("a", "b", "c")
    return bench, a, b, c


def test_no_round_without_a_lost_node_before_its_fence() -> None:
    """It is sealed a fence and a second after the stream broke, and not 1 ms before."""
    bench, a, b, c = trio()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)
    waiting = bench.the_wait()

    assert (WaitKind.FENCE, ["c"]) == (waiting.kind, [node.name for node in waiting.awaited])
    assert FENCE_MS + SLACK_MS - GRACE_MS == waiting.left_ms
    assert "c (not known to be clean)" in waiting.text

    bench.advance(FENCE_MS + SLACK_MS - GRACE_MS - 1)
    assert (Phase.FORMING, 1) == (bench.job().phase, len(bench.rounds()))

    bench.advance(1)
    assert (Phase.RUNNING, ["a", "b"]) == (bench.job().phase, bench.order())


def test_silent_node_is_fenced_from_when_it_was_last_heard() -> None:
    """The lease is part of the wait, not added to it."""
    bench, a, b, c = trio()
    bench.advance(1_000)
    heard_ms = bench.now_ms
    c.fall_silent()
    bench.advance(LEASE_MS)
    bench.obey(a, b)

    bench.advance(heard_ms + FENCE_MS + SLACK_MS - bench.now_ms - 1)
    assert Phase.FORMING is bench.job().phase

    bench.advance(1)
    assert Phase.RUNNING is bench.job().phase


def test_without_a_fence_nobody_is_waited_for() -> None:
    """The default is to go on at once."""
    bench, a, b, c = trio(replace(SPEC, fence_ms=0))
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)

    assert (Phase.RUNNING, ["a", "b"]) == (bench.job().phase, bench.order())


def test_node_that_comes_back_clean_lifts_its_fence() -> None:
    """Its Hello with Ready is enough, and it takes part."""
    bench, a, b, c = trio()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)
    bench.advance(1_000)

    c.hello(ready_round=1)

    assert (Phase.RUNNING, ["a", "b", "c"]) == (bench.job().phase, bench.order())


def test_node_that_comes_back_with_workers_is_waited_for() -> None:
    """It is told to stop them; its Ready begins the round."""
    bench, a, b, c = trio()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)
    bench.advance(FENCE_MS - 1_000)

    c.hello(claim=c.claim())
    bench.advance(LEASE_MS)
    assert (Phase.FORMING, 1) == (bench.job().phase, stopped_round(c))
    bench.obey()
    assert (Phase.RUNNING, ["a", "b", "c"]) == (bench.job().phase, bench.order())


def test_goodbye_lifts_a_fence() -> None:
    """A node that came back with workers and leaves, clean, is not waited for."""
    bench, a, b, c = trio()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)
    c.hello(claim=c.claim())

    c.goodbye()

    assert (Phase.RUNNING, ["a", "b"]) == (bench.job().phase, bench.order())


def test_other_agent_of_the_same_name_lifts_nothing() -> None:
    """Workers of the agent before may run although another one has its name."""
    bench, a, b, c = trio()
    c.break_off()
    other = bench.agent("c")
    other.hello()
    bench.obey(a, b)

    assert (WaitKind.FENCE, Phase.FORMING) == (bench.the_wait().kind, bench.job().phase)

    bench.advance(FENCE_MS + SLACK_MS)
    assert (Phase.RUNNING, ["a", "b", "c"]) == (bench.job().phase, bench.order())


@pytest.mark.parametrize("activity", [Activity.READY, Activity.SUCCEEDED])
def test_node_without_workers_is_not_waited_for(activity: Activity) -> None:
    """A node that was clean, or whose workers had all ended, needs no fence."""
    bench, a, b, c = trio(replace(SPEC, max_restarts=1))
    if activity is Activity.READY:
        a.fail()
        c.ready()
    else:
        c.succeed()
    c.break_off()
    bench.advance(GRACE_MS)
    if activity is Activity.SUCCEEDED:
        a.fail()
    bench.obey(a, b)

    assert (Phase.RUNNING, 2) == (bench.job().phase, len(bench.rounds()))


def test_member_that_did_not_stop_in_time_is_waited_for() -> None:
    """A member that is there and not clean, and that the stop no longer waits for, is fenced."""
    bench, a, b, _ = trio(replace(SPEC, max_restarts=1))
    a.fail()
    bench.obey(a, b)
    bench.advance(SPEC.grace_ms + Timing().stop_slack_ms)
    assert WaitKind.FENCE is bench.the_wait().kind

    bench.advance(LEASE_MS + FENCE_MS)
    assert ["a", "b"] == bench.order()


def test_fence_outlives_its_run() -> None:
    """Workers of a run that has ended are waited for by the next run of the job."""
    bench, a, b, c = trio()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)
    a.goodbye()
    b.goodbye()
    assert Phase.CLOSED is bench.job().phase

    bench.join("x", "y", "z")

    assert (2, WaitKind.FENCE) == (bench.job().run, bench.the_wait().kind)


def test_blind_coordinator_waits_from_its_start() -> None:
    """Without memory it begins no round for a fence and a second: somebody may still run one."""
    bench = Bench(SPEC, window_ms=2_500)
    bench.join("a", "b", "c")
    bench.advance(2_500)

    waiting = bench.the_wait()
    assert (WaitKind.FENCE, ()) == (waiting.kind, waiting.awaited)
    assert "has not run long enough" in waiting.text

    bench.advance(FENCE_MS + SLACK_MS - bench.now_ms - 1)
    assert Phase.FORMING is bench.job().phase

    bench.advance(1)
    assert Phase.RUNNING is bench.job().phase


@pytest.mark.parametrize(("missing", "waits"), [(0, False), (1, True)])
def test_round_adopted_whole_ends_the_blind_time(missing: int, waits: bool) -> None:
    """Whoever sealed it had waited already; of an incomplete one nobody knows that."""
    spec = replace(SPEC, max_restarts=1)
    old, *agents = trio(spec)
    bench = Bench(spec, window_ms=2_500, coordinator_id="c2", epoch=2_000)
    for agent in agents[missing:]:
        bench.adopt_agent(agent).hello(claim=agent.claim())
    bench.advance(2_500)
    bench.obey()
    if not missing:
        agents[0].fail()
        bench.obey()

    assert (Phase.FORMING if waits else Phase.RUNNING) is bench.job().phase
    assert waits == (bench.now_ms < bench.job().blind_until_ms)
    assert 1 == len(old.rounds())


def test_what_is_kept_of_fences_has_a_limit() -> None:
    """Beyond it the oldest are only waited out, and none is forgotten."""
    nodes = FENCES_MAX + 3
    bench = Bench(replace(SPEC, max_nodes=nodes, min_nodes=1))
    agents = bench.run_round(*(f"n{number}" for number in range(nodes)))
    for agent in agents[1:]:
        agent.fall_silent()
    bench.advance(2 * LEASE_MS)

    assert FENCES_MAX == len(bench.job().fences)
    bench.obey(agents[0])
    for agent in agents[3:]:
        agent.hello(ready_round=1)
    assert () == bench.job().fences
    assert WaitKind.FENCE is bench.the_wait().kind


def test_round_does_not_stop_to_grow_while_a_fence_is_up() -> None:
    """The next round could not begin before: the running one goes on until then."""
    bench, a, b, c = trio(replace(SPEC, grow=True, grow_after_ms=0, settle_ms=1_000))
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)
    bench.advance(FENCE_MS + SLACK_MS)
    assert (Phase.RUNNING, ["a", "b"]) == (bench.job().phase, bench.order())

    c.hello(claim=c.claim())  # with workers of round 1
    fence_ms = LEASE_MS + FENCE_MS
    bench.join("d")
    bench.advance(fence_ms - 1)
    c.heartbeat()
    assert (Phase.RUNNING, 2) == (bench.job().phase, len(bench.rounds()))

    bench.advance(1)
    bench.obey(a, b)
    assert (Phase.RUNNING, ["a", "b", "d"]) == (bench.job().phase, bench.order())
