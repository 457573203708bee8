"""What the simulation has found in the coordinator's core, each as the few steps that show it."""

from __future__ import annotations

from dataclasses import replace

from rallypoint.server.core.effects import DesiredRun, Welcome
from rallypoint.server.core.model import (
    Activity,
    JobSpec,
    Outcome,
    Phase,
    RoundReason,
    VerdictCause,
    WorkerExit,
)
from rallypoint.server.core.node import Claim
from support.coordinator import EPOCH, Bench
from support.fake_agents import FakeAgent, finished, stop_reason

WINDOW_MS = 2_500
PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=3, restart_backoff_ms=0)


def taken_over(spec: JobSpec = PAIR) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a coordinator in its window, and two agents whose round it does not know."""
    before = Bench(spec, coordinator_id="before")
    a, b = before.run_round("a", "b")
    bench = Bench(spec, window_ms=WINDOW_MS)
    return bench, bench.adopt_agent(a), bench.adopt_agent(b)


def test_success_of_a_leaving_member_counts_once() -> None:
    """A member that leaves after it has succeeded does not stand in for one that still works."""
    bench = Bench(PAIR)
    a, b = bench.run_round("a", "b")
    a.succeed()

    a.refuse("draining", leaving=True)
    assert Phase.RUNNING is bench.job().phase

    a.goodbye()
    assert Phase.RUNNING is bench.job().phase

    b.succeed()
    assert Outcome.SUCCEEDED is finished(b).outcome


def test_success_in_the_window_outlives_leaving() -> None:
    """A node that has succeeded and leaves while nothing is adopted yet keeps its success."""
    bench, a, b = taken_over()
    a.hello(claim=a.claim(Activity.SUCCEEDED))
    b.hello(claim=b.claim())
    a.refuse("draining", leaving=True)

    bench.advance(WINDOW_MS)
    a.goodbye()
    b.succeed()

    assert Outcome.SUCCEEDED is finished(b).outcome


def test_failed_claim_without_a_failed_exit_ends_the_round() -> None:
    """A node that could not start a worker says so only by its state once its report is gone."""
    bench, a, b = taken_over()
    not_started = WorkerExit(
        0, 0, 127, None, agent_signalled_first=True, stderr_tail="no such file"
    )
    a.hello(claim=a.claim(Activity.FAILED, [not_started]))
    b.hello(claim=b.claim())

    bench.advance(WINDOW_MS)

    verdict = bench.job().verdict
    assert verdict is not None
    assert (RoundReason.WORKER_FAILED, VerdictCause.CANNOT_START) == (stop_reason(b), verdict.cause)
    assert "no such file" in verdict.text


def test_reports_after_a_hello_take_nothing_back() -> None:
    """Reports that are older than the snapshot that came before them change no claim."""
    bench, a, b = taken_over()
    a.hello(claim=a.claim(Activity.UNREADY))
    b.hello(claim=b.claim())
    a.start()

    bench.advance(WINDOW_MS)

    assert RoundReason.NODE_LEFT is stop_reason(b)


def test_everybody_learns_that_the_run_is_a_later_one() -> None:
    """When an agent of a later run comes in the window, those before it take part in that run."""
    bench = Bench(PAIR, window_ms=WINDOW_MS)
    (a,) = bench.join("a")
    assert 1 == a.run
    b = bench.agent("b")
    b.run = 2
    b.hello()

    assert (2, 2, 2) == (bench.job().run, a.run, b.run)
    welcomes = [effect for effect in bench.effects if isinstance(effect, Welcome)]
    assert [1, 2, 2] == [welcome.run for welcome in welcomes]


def test_round_of_a_later_epoch_outranks_a_higher_number() -> None:
    """A number may come again after a crash, so what was sealed last is told by the epoch."""
    solo = replace(PAIR, min_nodes=1, max_nodes=1)
    first = Bench(solo, coordinator_id="first")
    (old,) = first.run_round("old")
    for _ in range(2):
        old.fail()
        first.obey()
    second = Bench(solo, coordinator_id="second", epoch=EPOCH + 1_000)
    (young,) = second.run_round("young")
    held: list[Claim] = [old.claim(), young.claim()]
    assert held[0].header.number > held[1].header.number
    bench = Bench(solo, window_ms=WINDOW_MS)
    bench.adopt_agent(old).hello(claim=held[0])
    bench.adopt_agent(young).hello(claim=held[1])
    wanted = young.desired

    bench.advance(WINDOW_MS)

    assert (Phase.RUNNING, held[1].header) == (bench.job().phase, bench.rounds()[-1])
    assert wanted == young.desired
    assert not isinstance(old.desired, DesiredRun)


def test_newcomer_that_broke_off_for_a_moment_is_taken_in() -> None:
    """A spare that was away and came back is a newcomer as it was before."""
    bench = Bench(replace(PAIR, min_nodes=1, last_call_ms=0))
    (a,) = bench.run_round("a")
    (b,) = bench.join("b")
    b.break_off()
    b.hello()

    bench.advance(PAIR.grow_after_ms + PAIR.settle_ms)
    bench.obey()

    assert ["a", "b"] == bench.order()
    assert RoundReason.GROWTH is bench.rounds()[-1].reason
    assert 0 == a.group_rank
