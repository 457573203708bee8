"""Newcomers of a running round join together, and not too often."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rallypoint.server.core.model.desired import DesiredRun, DesiredStandby
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import VerdictCause
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from rallypoint.server.core.rounds.waits import LAST_CALL_FACTOR
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, stop_reason, worker_exit

SPEC = JobSpec(min_nodes=2, max_nodes=4, max_restarts=3)
RECORDED = WorkerExit(
    *(0, 4_000, None, 15),
    agent_signalled_first=True,
    ran_ms=2_000,
    error=ErrorRecord("ValueError: loss is nan", before_exit_ms=480),
    signalled_before_ms=30,
)
SETTLE_MS = 5_000
GROW_AFTER_MS = 10_000


def grown_up(spec: JobSpec = SPEC) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a bench whose round of two nodes is old enough to grow."""
    bench = Bench(spec)
    a, b = bench.run_round("a", "b")
    bench.advance(10 * GROW_AFTER_MS)
    return bench, a, b


def grow(bench: Bench, *names: str) -> None:
    """Let nodes come, and the round grow at the earliest time."""
    bench.join(*names)
    while bench.job().phase is Phase.RUNNING:
        bench.advance(1_000)
    bench.obey()


def test_newcomer_is_taken_in_when_things_have_settled() -> None:
    """A newcomer stops the round 5 s after it came, and not 1 ms before."""
    bench, a, b = grown_up()
    (c,) = bench.join("c")
    assert DesiredStandby(spare=True) == c.desired

    bench.advance(SETTLE_MS - 1)
    assert Phase.RUNNING is bench.job().phase

    bench.advance(1)
    assert RoundReason.GROWTH is stop_reason(a)
    bench.obey()
    assert [0, 1, 2] == [a.group_rank, b.group_rank, c.group_rank]
    assert RoundReason.GROWTH is bench.rounds()[-1].reason


def test_growth_is_no_restart() -> None:
    """Growth charges no restart, counts as no re-formation and leaves no verdict."""
    bench, *_ = grown_up()

    grow(bench, "c")

    job = bench.job()
    assert (0, 0, 1, None) == (
        job.counts.restart_count,
        job.counts.reformations,
        job.counts.growths,
        job.verdict,
    )


def test_every_arrival_renews_the_settle_time() -> None:
    """Newcomers that arrive one after the other join with one stop."""
    bench, *_ = grown_up()
    bench.join("c")
    bench.advance(SETTLE_MS - 1)
    bench.join("d")

    bench.advance(SETTLE_MS - 1)
    assert Phase.RUNNING is bench.job().phase

    bench.advance(1)
    bench.obey()
    assert (["a", "b", "c", "d"], 2) == (bench.order(), len(bench.rounds()))


def test_settle_time_has_a_limit() -> None:
    """However often a node comes, growth begins 30 s after the first newcomer."""
    bench, *_ = grown_up(replace(SPEC, max_nodes=99))
    for n in range(8):
        bench.join(f"n{n}")
        bench.advance(4_000 if n < 7 else 1_999)
    assert Phase.RUNNING is bench.job().phase

    bench.advance(1)

    assert Phase.STOPPING is bench.job().phase


def test_young_round_is_left_alone() -> None:
    """A round younger than grow_after is not stopped for growth."""
    bench = Bench(SPEC)
    bench.run_round("a", "b")
    bench.join("c")

    bench.advance(GROW_AFTER_MS - 1)
    assert Phase.RUNNING is bench.job().phase

    bench.advance(1)
    assert Phase.STOPPING is bench.job().phase


def test_patience_doubles_with_every_growth() -> None:
    """After a growth the next needs a round twice as old."""
    bench, *_ = grown_up()
    grow(bench, "c")
    bench.join("d")

    bench.advance(2 * GROW_AFTER_MS - 1)
    assert Phase.RUNNING is bench.job().phase

    bench.advance(1)
    assert Phase.STOPPING is bench.job().phase


def test_progress_resets_the_patience() -> None:
    """A round that made progress is grown as early as a first one, and so is the next."""
    bench, *_ = grown_up()
    grow(bench, "c")
    bench.advance(JobSpec().progress_after_ms)

    grow(bench, "d")

    assert 1 == bench.job().counts.growths


def test_no_grow() -> None:
    """With growing turned off a newcomer stays a spare."""
    bench, *_ = grown_up(replace(SPEC, grow=False))
    (c,) = bench.join("c")

    bench.advance(10 * GROW_AFTER_MS)

    assert (Phase.RUNNING, DesiredStandby(spare=True)) == (bench.job().phase, c.desired)


def test_full_round_does_not_grow() -> None:
    """Beyond max_nodes newcomers are spares."""
    bench, *_ = grown_up(replace(SPEC, max_nodes=2))
    (c,) = bench.join("c")

    bench.advance(10 * GROW_AFTER_MS)

    assert (Phase.RUNNING, DesiredStandby(spare=True), []) == (
        bench.job().phase,
        c.desired,
        bench.notices(),
    )


def test_only_what_fits_is_taken() -> None:
    """Of more newcomers than fit the earliest are taken; the others become spares."""
    bench, *_ = grown_up(replace(SPEC, max_nodes=3))

    grow(bench, "z", "c")

    assert ["a", "b", "z"] == bench.order()


@pytest.mark.parametrize("finish", [FakeAgent.exit, FakeAgent.succeed])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_no_growth_once_a_worker_has_finished(
    when: str, finish: Callable[[FakeAgent], object]
) -> None:
    """Once any worker has ended with 0 the round is not stopped for growth any more."""
    bench, a, _ = grown_up()
    if when == "before":
        finish(a)
    bench.join("c")
    if when == "meanwhile":
        finish(a)

    bench.advance(10 * GROW_AFTER_MS)

    assert (Phase.RUNNING, None) == (bench.job().phase, bench.wait())


def test_members_get_one_notice() -> None:
    """Members hear once, and in time, until when their round will grow; newcomers do not.

    Every newcomer moves the instant, so the notice gives the latest one possible.
    """
    bench, a, b = grown_up()
    bench.join("c")
    bench.advance(1_000)
    bench.join("d")
    bench.advance(SETTLE_MS)

    sent = [(notify.session, notify.notices) for notify in bench.notices()]
    assert [(a.session, 1), (b.session, 1)] == [(session, len(found)) for session, found in sent]
    ((notice, left_ms),) = sent[0][1]
    assert (None, LAST_CALL_FACTOR * SETTLE_MS) == (notice.name, left_ms)


def test_newcomer_that_leaves_stops_nothing() -> None:
    """When the newcomers are gone before growth is due, the round continues."""
    bench, *_ = grown_up()
    (c,) = bench.join("c")
    bench.advance(SETTLE_MS - 1)
    c.goodbye()

    bench.advance(10 * GROW_AFTER_MS)

    assert (Phase.RUNNING, 1) == (bench.job().phase, len(bench.rounds()))


def test_newcomer_after_one_that_left_gets_a_whole_settle_time() -> None:
    """The limit of the settle time counts from the first newcomer that is still there."""
    bench, *_ = grown_up()
    (c,) = bench.join("c")
    c.goodbye()
    bench.advance(6 * SETTLE_MS)
    bench.join("d")

    bench.advance(SETTLE_MS - 1)
    assert (Phase.RUNNING, WaitKind.GROWTH) == (bench.job().phase, bench.the_wait().kind)

    bench.advance(1)
    assert Phase.STOPPING is bench.job().phase


def test_unready_newcomer_is_no_newcomer() -> None:
    """A node on which an old round still runs does not make the round grow before it is Ready."""
    late, _ = Bench(SPEC).run_round("c", "x")
    bench, *_ = grown_up()
    bench.adopt_agent(late).hello(held=late.held_round())

    bench.advance(10 * SETTLE_MS)
    assert Phase.RUNNING is bench.job().phase

    late.obey()
    bench.advance(SETTLE_MS)
    assert Phase.STOPPING is bench.job().phase


@pytest.mark.parametrize(
    "exit",
    [
        pytest.param(worker_exit(), id="by itself"),
        pytest.param(RECORDED, id="with an error that it had recorded before our signal"),
    ],
)
def test_failure_during_a_growth_stop_is_not_charged(exit: WorkerExit) -> None:
    """A worker that fails when its round is being stopped for growth costs nothing."""
    bench, a, _ = grown_up()
    bench.join("c")
    bench.advance(SETTLE_MS)

    a.fail(exit)
    bench.obey()

    counts = bench.job().counts
    assert (0, 0, 1) == (counts.restart_count, counts.reformations, counts.growths)
    assert (3, RoundReason.GROWTH, None) == (
        len(bench.order()),
        bench.rounds()[-1].reason,
        bench.job().verdict,
    )


def test_node_lost_during_a_growth_stop() -> None:
    """A node that is lost during a growth stop is a loss, and the round forms without it."""
    bench, a, b = grown_up()
    (c,) = bench.join("c")
    bench.advance(SETTLE_MS)
    b.break_off()
    bench.advance(500)

    bench.obey()

    verdict = bench.job().verdict
    assert verdict is not None
    assert (VerdictCause.NODE_LOST, ["a", "c"]) == (verdict.cause, bench.order())
    assert (0, 1) == (bench.job().counts.growths, bench.job().counts.reformations)
    assert isinstance(a.desired, DesiredRun) and isinstance(c.desired, DesiredRun)
