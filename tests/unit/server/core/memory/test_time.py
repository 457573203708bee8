"""Waits continue after a start where they were, and none begins again with every start."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages.inputs import Stalled
from rallypoint.server.core.model.desired import DesiredRun
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.rounds.fences import SLACK_MS, fenced_until_ms
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, come_back, worker_exit

PAIR = JobSpec(min_nodes=1, max_nodes=2, max_restarts=1, settle_time_ms=0)
LEASE_MS, ATTEMPT_MS = Timing().lease_ms, Timing().window_ms
LIFE_MS = 4_000
"""How long a coordinator lives that is killed again and again: less than a lease."""


def running(spec: JobSpec = PAIR) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a durable coordinator with a round of two nodes."""
    bench = Bench(spec, durable=True)
    bench.advance(10_000)
    a, b = bench.run_round("a", "b")
    return bench, a, b


def live_again(bench: Bench, *agents: FakeAgent) -> None:
    """Let the coordinator start again, these agents return, and it live for a while."""
    bench.restart()
    for agent in agents:
        come_back(agent)
    bench.advance(LIFE_MS)


def test_lost_node_is_given_up_however_often_the_coordinator_is_killed() -> None:
    """Its time to return began with the first start without it."""
    bench, a, b = running()

    live_again(bench, a)
    assert isinstance(a.desired, DesiredRun)
    live_again(bench, a)

    assert b.node is None
    assert Phase.RUNNING is not bench.job().phase


def test_node_that_was_there_until_the_crash_has_its_whole_time() -> None:
    """Again after every start, because it has returned after the one before."""
    bench, a, b = running()
    for _ in range(5):
        live_again(bench, a, b)

    bench.restart()
    bench.advance(LEASE_MS - 1)
    come_back(a)
    come_back(b)

    assert [1] == [header.number for header in bench.rounds()]
    assert Phase.RUNNING is bench.job().phase


def test_every_start_leaves_time_for_an_attempt() -> None:
    """An agent that finds no coordinator for long may just be between two attempts."""
    bench, a, b = running()
    for _ in range(8):
        bench.restart()
        bench.advance(ATTEMPT_MS - 1)
    come_back(a)
    come_back(b)

    assert Phase.RUNNING is bench.job().phase


def test_fence_counts_from_the_first_start_without_the_node() -> None:
    """Its last heartbeat was before that; further starts make the fence no longer."""
    fence_after_ms = 40_000
    bench, a, _ = running(replace(PAIR, fence_after_ms=fence_after_ms))
    started_ms = bench.now_ms + 1
    live_again(bench, a)
    live_again(bench, a)

    least_ms = started_ms + fence_after_ms + SLACK_MS
    assert least_ms <= fenced_until_ms(bench.job()) < least_ms + LIFE_MS


@pytest.mark.parametrize("lived_ms", [0, 29_000])
def test_start_of_workers_is_due_once(lived_ms: int) -> None:
    """A member that does not start is set aside although the coordinator is killed meanwhile."""
    bench = Bench(PAIR, durable=True)
    bench.advance(10_000)
    a, b = bench.join("a", "b")
    a.start()
    bench.advance(lived_ms)
    passed_ms = lived_ms
    while Phase.RUNNING is bench.job().phase and passed_ms < 100_000:
        bench.restart()
        come_back(a)
        come_back(b, NodeState.ASSIGNED)
        bench.advance(LIFE_MS)
        passed_ms += LIFE_MS

    assert passed_ms < Timing().start_due_ms + LEASE_MS + 3 * LIFE_MS


@pytest.mark.parametrize("later_ms", [20, -20])
@pytest.mark.parametrize("is_stall", [False, True])
def test_order_of_failures_survives_that_journal_time_stands(
    later_ms: int, *, is_stall: bool
) -> None:
    """The age of a failure that is reported afterwards counts the time that journal time does not:
    a worker that has failed just after another one is not taken for the culprit."""
    stood_ms, soon_ms = 5_000, 50
    bench, a, b = running()
    a.fail(worker_exit(3))
    bench.advance(soon_ms)

    if is_stall:
        bench.take(Stalled(stood_ms))
    else:
        bench.restart(away_ms=stood_ms)
        come_back(a, NodeState.FAILED, [worker_exit(3)])
        come_back(b)
    b.fail(replace(worker_exit(4), ago_ms=soon_ms + stood_ms - later_ms))

    culprit = bench.the_verdict().culprit
    assert culprit is not None
    assert ("a" if later_ms > 0 else "b") == culprit.name
    bench.check_journal()
