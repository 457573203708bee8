"""With a fence, no round begins while workers of a lost node may still run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.rounds.fences import FENCES_MAX, SLACK_MS
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, stopped_round

GRACE_MS = 500
LEASE_MS = 5_000
FENCE_MS = 20_000
SPEC = JobSpec(
    min_nodes=1, max_nodes=3, grow=False, shutdown_timeout_ms=2_000, fence_after_ms=FENCE_MS
)


def trio(spec: JobSpec = SPEC) -> tuple[Bench, FakeAgent, FakeAgent, FakeAgent]:
    """Return a bench with a started round of three nodes."""
    bench = Bench(spec)
    a, b, c = bench.run_round("a", "b", "c")
    return bench, a, b, c


def test_no_round_without_a_lost_node_before_its_fence() -> None:
    """The next round is sealed a fence and a second after the stream broke, not 1 ms before."""
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
    """A silent node's lease is part of the wait, not added to it."""
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
    """Without a fence the job continues at once."""
    bench, a, b, c = trio(replace(SPEC, fence_after_ms=0))
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)

    assert (Phase.RUNNING, ["a", "b"]) == (bench.job().phase, bench.order())


def test_node_that_comes_back_clean_lifts_its_fence() -> None:
    """A Hello with Ready lifts the fence, and the node takes part."""
    bench, a, b, c = trio()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)
    bench.advance(1_000)

    c.hello(ready_round=1)

    assert (Phase.RUNNING, ["a", "b", "c"]) == (bench.job().phase, bench.order())


def test_node_that_comes_back_with_workers_is_waited_for() -> None:
    """A node that comes back with workers has to stop them; its Ready begins the round."""
    bench, a, b, c = trio()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)
    bench.advance(FENCE_MS - 1_000)

    c.hello(held=c.held_round())
    bench.advance(LEASE_MS)
    assert (Phase.FORMING, 1) == (bench.job().phase, stopped_round(c))
    bench.obey()
    assert (Phase.RUNNING, ["a", "b", "c"]) == (bench.job().phase, bench.order())


def test_goodbye_lifts_a_fence() -> None:
    """A node that came back with workers and then leaves clean delays no round."""
    bench, a, b, c = trio()
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)
    c.hello(held=c.held_round())

    c.goodbye()

    assert (Phase.RUNNING, ["a", "b"]) == (bench.job().phase, bench.order())


def test_other_agent_of_the_same_name_lifts_nothing() -> None:
    """Workers of the earlier agent may run although another one has its name."""
    bench, a, b, c = trio()
    c.break_off()
    other = bench.agent("c")
    other.hello()
    bench.obey(a, b)

    assert (WaitKind.FENCE, Phase.FORMING) == (bench.the_wait().kind, bench.job().phase)

    bench.advance(FENCE_MS + SLACK_MS)
    assert (Phase.RUNNING, ["a", "b", "c"]) == (bench.job().phase, bench.order())


@pytest.mark.parametrize("state", [NodeState.READY, NodeState.SUCCEEDED])
def test_node_without_workers_is_not_waited_for(state: NodeState) -> None:
    """A node that was clean, or whose workers had all ended, needs no fence."""
    bench, a, b, c = trio(replace(SPEC, max_restarts=1))
    if state is NodeState.READY:
        a.fail()
        c.ready()
    else:
        c.succeed()
    c.break_off()
    bench.advance(GRACE_MS)
    if state is NodeState.SUCCEEDED:
        a.fail()
    bench.obey(a, b)

    assert (Phase.RUNNING, 2) == (bench.job().phase, len(bench.rounds()))


def test_member_that_did_not_stop_in_time_is_waited_for() -> None:
    """An attached member that is overdue and not clean is fenced."""
    bench, a, b, _ = trio(replace(SPEC, max_restarts=1))
    a.fail()
    bench.obey(a, b)
    bench.advance(SPEC.shutdown_timeout_ms + Timing().stop_slack_ms)
    assert WaitKind.FENCE is bench.the_wait().kind

    bench.advance(LEASE_MS + FENCE_MS)
    assert ["a", "b"] == bench.order()


def test_fence_outlives_its_run() -> None:
    """The next run of a job waits for the workers of the run before."""
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
    """A coordinator without memory begins no round for a fence and a second."""
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
    """An adopted round ends the wait, since its predecessor waited; an incomplete one does not."""
    spec = replace(SPEC, max_restarts=1)
    old, *agents = trio(spec)
    bench = Bench(spec, window_ms=2_500, coordinator_id="c2", epoch=2_000)
    for agent in agents[missing:]:
        bench.adopt_agent(agent).hello(held=agent.held_round())
    bench.advance(2_500)
    bench.obey()
    if not missing:
        agents[0].fail()
        bench.obey()

    assert (Phase.FORMING if waits else Phase.RUNNING) is bench.job().phase
    assert waits == (bench.now_ms < bench.job().unknown_past_until_ms)
    assert 1 == len(old.rounds())


def test_what_is_kept_of_fences_has_a_limit() -> None:
    """Beyond the limit the oldest fences run to their end, and none is forgotten."""
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
    """A running round is not stopped for growth before a fence ends."""
    bench, a, b, c = trio(replace(SPEC, grow=True, grow_after_ms=0, settle_time_ms=1_000))
    c.break_off()
    bench.advance(GRACE_MS)
    bench.obey(a, b)
    bench.advance(FENCE_MS + SLACK_MS)
    assert (Phase.RUNNING, ["a", "b"]) == (bench.job().phase, bench.order())

    c.hello(held=c.held_round())  # with workers of round 1
    fence_after_ms = LEASE_MS + FENCE_MS
    bench.join("d")
    bench.advance(fence_after_ms - 1)
    c.heartbeat()
    assert (Phase.RUNNING, 2) == (bench.job().phase, len(bench.rounds()))

    bench.advance(1)
    bench.obey(a, b)
    assert (Phase.RUNNING, ["a", "b", "d"]) == (bench.job().phase, bench.order())


@pytest.mark.parametrize(
    ("search_ms", "beyond_ms", "warns"),
    [(5_000, 7_999, True), (5_000, 8_000, False), (0, 3_000, False)],
)
def test_fence_that_is_shorter_than_a_takeover_is_logged(
    search_ms: int, beyond_ms: int, warns: bool
) -> None:
    """Only where another coordinator may take over, which takes up to 7 s."""
    spec = replace(SPEC, fence_after_ms=SPEC.shutdown_timeout_ms + beyond_ms)
    bench = Bench(spec, timing=Timing(search_ms=search_ms))
    bench.join("a")

    assert warns == ("fence_too_short" in bench.events())
