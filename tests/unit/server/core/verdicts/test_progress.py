"""Steps that workers report: which of them are progress for the restart policy."""

from __future__ import annotations

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.job import Counts
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.step import Transition
from support.core.coordinator import Bench
from support.core.fake_agents import worker_exit
from support.core.rounds import pair


def report(bench: Bench, step: int, *, round: int | None = None, run: int = 1) -> Transition:
    """Let a worker of the current round, or of another one, report a step."""
    job = bench.job()
    number = job.round_number if round is None else round
    claim = inputs.Claim(job.job_id, run, number, "token", is_signed=True)
    return bench.take(inputs.Progressed(claim, step))


def test_higher_step_ends_a_streak() -> None:
    """The pauses begin again, however short the round was."""
    bench, a, _ = pair(max_restarts=9)
    for _ in range(2):
        a.fail()
        bench.obey()
    report(bench, 40)
    a.fail()
    bench.obey()

    assert Phase.RUNNING is bench.job().phase
    assert Counts(restart_count=3, step=40, streak=1) == bench.job().counts


def test_step_that_an_earlier_round_reached_is_no_progress() -> None:
    """A script that begins at its checkpoint again and fails at the same step stands still."""
    bench, a, _ = pair(max_restarts=9)
    for step in (40, 40, 39):
        report(bench, step)
        a.fail()
        bench.obey()

    assert Phase.FORMING is bench.job().phase
    assert (3, 40) == (bench.job().counts.streak, bench.job().counts.step)


def test_highest_report_of_a_round_counts() -> None:
    """Reports may come late, or twice."""
    bench, a, _ = pair(max_restarts=9)
    for step in (40, 41, 12, 41):
        report(bench, step)
    a.fail()
    bench.obey()

    assert 41 == bench.job().counts.step


def test_age_of_a_step_counts_from_when_it_was_reached() -> None:
    """A report may be late; the usual gap follows the latest ones slowly."""
    bench, *_ = pair()
    report(bench, 1)
    for step in range(2, 12):
        bench.advance(1_000)
        report(bench, step)
    bench.advance(60_000)
    assert (60_000, 1_000) == step_times(bench)
    job = bench.job()
    claim = inputs.Claim(job.job_id, 1, job.round_number, "token", is_signed=True)
    bench.take(inputs.Progressed(claim, 12, 59_000))
    assert (59_000, 1_000) == step_times(bench)
    report(bench, 12)
    assert (59_000, 1_000) == step_times(bench)
    report(bench, 13)

    assert (0, 1_000 + 58_000 // 8) == step_times(bench)


def step_times(bench: Bench) -> tuple[int, int | None]:
    round = bench.job().round
    assert round is not None and round.step_ms is not None
    return bench.now_ms - round.step_ms, round.step_gap_ms


def test_job_that_advances_is_no_crash_loop() -> None:
    """Five early deaths with one text end a job, unless each round came further."""
    early = worker_exit(2, said="bad sample", ran_ms=10)
    spec = JobSpec(max_restarts=99, restart_backoff_ms=0, crash_loop=5)
    for advances, outcome in ((True, None), (False, Outcome.FAILED)):
        bench = Bench(spec)
        (a,) = bench.run_round("a")
        for number in range(5):
            report(bench, number + 1 if advances else 7)
            a.fail(early)
            bench.obey()

        assert outcome is bench.job().outcome


def test_only_the_current_round_reports() -> None:
    """A worker of an earlier round or run changes nothing."""
    bench, a, _ = pair(max_restarts=9)
    a.fail()
    bench.obey()
    for refused, kind in (
        (report(bench, 40, round=1), RefusalKind.OLD_ROUND),
        (report(bench, 40, run=7), RefusalKind.RUN_OVER),
    ):
        assert refused.refusal is not None
        assert kind is refused.refusal.kind

    assert 0 == bench.job().round.step  # type: ignore[union-attr]  # it runs
