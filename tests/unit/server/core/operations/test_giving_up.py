"""A forced cancellation gives up the nodes that do not answer."""

from __future__ import annotations

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.rounds.fences import SLACK_MS
from support.core.coordinator import HEARTBEAT_MS, Bench
from support.core.fake_agents import JOB, FakeAgent, finished

LEASE_MS = 1_800_000
FENCE_MS = 20_000
SPEC = JobSpec(min_nodes=2, max_nodes=2, lease_ms=LEASE_MS)
FENCED = JobSpec(min_nodes=2, max_nodes=2, lease_ms=LEASE_MS, fence_after_ms=FENCE_MS)


def running(spec: JobSpec = SPEC) -> tuple[Bench, FakeAgent, FakeAgent]:
    bench = Bench(spec)
    a, b = bench.run_round("a", "b")
    return bench, a, b


def cancel(bench: Bench, *, is_forced: bool, run: int = 0) -> None:
    request = inputs.CancelJob(JOB, run, "", give_up_silent_nodes=is_forced)
    assert bench.take(request).refusal is None


def names(bench: Bench) -> list[str]:
    return [str(bench.state.nodes[one].name) for one in bench.state.sessions[bench.job().job_id]]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_new_agents_need_not_wait_for_the_leases_of_dead_ones(*, is_cancelled: bool) -> None:
    """The run is over at once, also if it had ended before; the names are free."""
    bench, a, b = running()
    a.fall_silent()
    b.fall_silent()
    if is_cancelled:
        cancel(bench, is_forced=False)
    bench.advance(2 * HEARTBEAT_MS + 1)
    if is_cancelled:
        refusal = bench.agent("a").hello().refusal
        assert refusal is not None
        assert refusal.kind is RefusalKind.PREVIOUS_RUN_ENDING
    cancel(bench, is_forced=True)
    assert (bench.job().outcome, names(bench)) == (Outcome.CANCELLED, [])
    bench.check_journal()
    bench.run_round("a", "b")

    assert (bench.job().run, bench.order()) == (2, ["a", "b"])


def test_nodes_that_answer_learn_the_outcome() -> None:
    """Only those that have missed two heartbeats are given up; a stream that just broke is not."""
    bench = Bench(JobSpec(min_nodes=4, max_nodes=4, lease_ms=LEASE_MS))
    a, b, c, d = bench.run_round("a", "b", "c", "d")
    b.fall_silent()
    bench.advance(2 * HEARTBEAT_MS)
    c.break_off()
    bench.advance(1)
    cancel(bench, is_forced=True)

    assert names(bench) == ["a", "c", "d"]
    assert finished(a).outcome is finished(d).outcome is Outcome.CANCELLED


def test_another_run_is_not_touched() -> None:
    """The request meant one that was over."""
    bench, a, b = running()
    for agent in (a, b):
        agent.goodbye()
    cancel(bench, is_forced=False)
    a, b = bench.run_round("a", "b")
    a.fall_silent()
    bench.advance(2 * HEARTBEAT_MS + 1)
    cancel(bench, is_forced=True, run=1)

    assert (bench.job().run, bench.job().phase, names(bench)) == (2, Phase.RUNNING, ["a", "b"])


def test_fences_of_nodes_that_were_given_up_hold() -> None:
    """Where one is only cut off, its workers are dead before the next round begins."""
    bench, a, b = running(FENCED)
    a.fall_silent()
    b.fall_silent()
    bench.advance(2 * HEARTBEAT_MS + 1)
    cancel(bench, is_forced=True)
    bench.join("a", "b")
    bench.advance(FENCE_MS + SLACK_MS - 1)
    assert (bench.job().phase, bench.the_wait().kind) == (Phase.FORMING, WaitKind.FENCE)
    bench.advance(1)

    assert (bench.job().run, bench.job().phase) == (2, Phase.RUNNING)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_agent_that_was_given_up_stops_when_it_returns(*, is_replaced: bool) -> None:
    """It learns the outcome of its run, or that another one is open."""
    bench, a, b = running()
    a.fall_silent()
    b.fall_silent()
    bench.advance(2 * HEARTBEAT_MS + 1)
    held = a.held_round()
    cancel(bench, is_forced=True)
    if is_replaced:
        bench.run_round("a", "b")
    refusal = a.hello(held=held).refusal
    if is_replaced:
        assert refusal is not None
        assert refusal.kind is RefusalKind.OLD_RUN
    else:
        assert (refusal, finished(a).outcome) == (None, Outcome.CANCELLED)
