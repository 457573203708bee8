"""Bugs that the simulation found in the coordinator's core, each in the few steps that show it."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages.effects import Welcome
from rallypoint.server.core.model.desired import DesiredRun
from rallypoint.server.core.model.node import HeldRound, NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import VerdictCause
from support.core.coordinator import EPOCH, Bench
from support.core.fake_agents import FakeAgent, finished, stop_reason

WINDOW_MS = 2_500
PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=3, restart_backoff_ms=0)


def taken_over(spec: JobSpec = PAIR) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a coordinator in its window, and two agents whose round it does not know."""
    before = Bench(spec, coordinator_id="before")
    a, b = before.run_round("a", "b")
    bench = Bench(spec, window_ms=WINDOW_MS)
    return bench, bench.adopt_agent(a), bench.adopt_agent(b)


def test_success_in_the_window_outlives_leaving() -> None:
    """A node that has succeeded and leaves while nothing is adopted yet keeps its success."""
    bench, a, b = taken_over()
    a.hello(held=a.held_round(NodeState.SUCCEEDED))
    b.hello(held=b.held_round())
    a.leave("draining")

    bench.advance(WINDOW_MS)
    a.goodbye()
    b.succeed()

    assert Outcome.SUCCEEDED is finished(b).outcome


def test_failed_held_round_without_a_failed_exit_ends_the_round() -> None:
    """Once its report is lost, only its state shows that a node could not start a worker."""
    bench, a, b = taken_over()
    a.hello(held=a.held_round(NodeState.FAILED, start_failure="no such file"))
    b.hello(held=b.held_round())

    bench.advance(WINDOW_MS)

    verdict = bench.job().verdict
    assert verdict is not None
    assert (RoundReason.WORKER_FAILED, VerdictCause.START_FAILED) == (stop_reason(b), verdict.cause)
    assert "no such file" in verdict.text


def test_reports_after_a_hello_take_nothing_back() -> None:
    """Reports that are older than the snapshot that came before them change no held round."""
    bench, a, b = taken_over()
    a.hello(held=a.held_round(NodeState.UNREADY))
    b.hello(held=b.held_round())
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
    """A number may come again after a crash, so the epoch decides which round is the latest."""
    solo = replace(PAIR, min_nodes=1, max_nodes=1)
    first = Bench(solo, coordinator_id="first")
    (old,) = first.run_round("old")
    for _ in range(2):
        old.fail()
        first.obey()
    second = Bench(solo, coordinator_id="second", epoch=EPOCH + 1_000)
    (young,) = second.run_round("young")
    held: list[HeldRound] = [old.held_round(), young.held_round()]
    assert held[0].header.number > held[1].header.number
    bench = Bench(solo, window_ms=WINDOW_MS)
    bench.adopt_agent(old).hello(held=held[0])
    bench.adopt_agent(young).hello(held=held[1])
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

    bench.advance(PAIR.grow_after_ms + PAIR.settle_time_ms)
    bench.obey()

    assert ["a", "b"] == bench.order()
    assert RoundReason.GROWTH is bench.rounds()[-1].reason
    assert 0 == a.group_rank
