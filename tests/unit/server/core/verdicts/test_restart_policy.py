"""Whether a failure is restarted, and when: pauses, crash loops, exit codes."""

from __future__ import annotations

import pytest

from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence
from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.server.core.verdicts.policy import (
    CRASH_YOUNG_MS,
    JITTER,
    compute_backoff_ms,
    describe_consequence,
)
from support.core.coordinator import Bench, consequence
from support.core.fake_agents import worker_exit
from support.core.rounds import pair

SPEC = JobSpec()


@pytest.mark.parametrize(
    ("streak", "base_ms", "expected"),
    [
        (1, 1_000, 0),
        (2, 1_000, 0),
        (3, 1_000, 1_000),
        (4, 1_000, 2_000),
        (8, 1_000, 32_000),
        (9, 1_000, 60_000),
        (1_000, 1_000, 60_000),
        (1_000, 0, 0),
    ],
)
def test_backoff(streak: int, base_ms: int, expected: int) -> None:
    """The first two restarts are immediate, then the pause doubles up to a minute, give or take."""
    pauses = [compute_backoff_ms(streak, base_ms, JobId(f"job-{n}")) for n in range(200)]

    assert min(pauses) >= expected * (1 - JITTER)
    assert max(pauses) <= expected * (1 + JITTER)
    assert pauses == [compute_backoff_ms(streak, base_ms, JobId(f"job-{n}")) for n in range(200)]
    if expected:  # spread over the whole width, evenly enough
        middle = sum(pauses) / len(pauses)
        assert abs(middle - expected) < 0.05 * expected
        assert max(pauses) - min(pauses) > 0.45 * expected


def test_third_restart_is_delayed() -> None:
    """The third restart in a row waits for its pause although all nodes are ready."""
    bench, a, _ = pair(max_restarts=9)
    for _ in range(3):
        a.fail()
        bench.obey()
    assert (Phase.FORMING, WaitKind.BACKOFF) == (bench.job().phase, bench.the_wait().kind)

    pause_ms = compute_backoff_ms(3, bench.spec.restart_backoff_ms, bench.job().job_id)
    bench.advance(pause_ms - 1)
    assert Phase.FORMING is bench.job().phase

    bench.advance(1)
    assert (Phase.RUNNING, 4) == (bench.job().phase, bench.job().round_number)


@pytest.mark.parametrize(
    ("lived_ms", "expected"),
    [(SPEC.progress_after_ms, Phase.RUNNING), (SPEC.progress_after_ms - 1, Phase.FORMING)],
)
def test_progress_ends_a_streak(lived_ms: int, expected: Phase) -> None:
    """A round that lived for five minutes makes the next failure the first in a row again."""
    bench, a, _ = pair(max_restarts=9)
    bench.advance(1_000)
    for _ in range(2):
        a.fail()
        bench.obey()

    bench.advance(lived_ms)
    a.fail()
    bench.obey()

    assert expected is bench.job().phase


def fail_often(times: int, *exits: WorkerExit, crash_loop: int = 5) -> Bench:
    """Return a job of one node that failed `times` times, with `exits` in turn."""
    bench = Bench(JobSpec(max_restarts=99, restart_backoff_ms=0, crash_loop=crash_loop))
    (a,) = bench.run_round("a")
    for n in range(times):
        a.fail(exits[n % len(exits)])
        bench.obey()
    return bench


EARLY = worker_exit(2, said="cannot open /data/7", ran_ms=CRASH_YOUNG_MS)


@pytest.mark.parametrize(
    ("claim", "exits", "outcome"),
    [
        ("the same early death", (EARLY,), Outcome.FAILED),
        (
            "digits do not make a difference",
            (EARLY, worker_exit(2, said="cannot open /data/8123", ran_ms=10)),
            Outcome.FAILED,
        ),
        ("another text", (EARLY, worker_exit(2, said="no memory", ran_ms=10)), None),
        ("another code", (EARLY, worker_exit(3, said="cannot open /data/7", ran_ms=10)), None),
        ("a late death", (worker_exit(2, ran_ms=CRASH_YOUNG_MS + 1),), None),
        ("a signal", (worker_exit(signal=11, ran_ms=10),), None),
    ],
)
def test_crash_loop(claim: str, exits: tuple[WorkerExit, ...], outcome: Outcome | None) -> None:
    """The same exit code and text five times in a row, each soon after the start, ends the run."""
    bench = fail_often(SPEC.crash_loop, *exits)

    assert outcome is bench.job().outcome, claim
    if outcome is not None:
        verdict = bench.job().verdict
        assert verdict is not None and Consequence.CRASH_LOOP is verdict.consequence
        assert "(--crash-loop)" in describe_consequence(verdict)


def test_four_equal_deaths_are_no_loop() -> None:
    """One death fewer than the limit is restarted."""
    bench = fail_often(SPEC.crash_loop - 1, EARLY)

    assert (Phase.RUNNING, Consequence.RESTARTED) == (bench.job().phase, consequence(bench.job()))


CODES = JobSpec(2, 2, max_restarts=9, no_retry_exit_codes=(3, 65), no_requeue_exit_codes=(4,))


@pytest.mark.parametrize(
    ("exit", "expected"),
    [
        (worker_exit(1), Consequence.RESTARTED),
        (worker_exit(3), Consequence.NOT_RETRYABLE),
        (worker_exit(65), Consequence.NOT_RETRYABLE),
        (worker_exit(4), Consequence.NO_REQUEUE),
        (worker_exit(signal=4), Consequence.RESTARTED),
    ],
)
def test_classes_of_exit_codes(exit: WorkerExit, expected: Consequence) -> None:
    """The culprit's exit code decides whether the run continues; remaining restarts do not."""
    bench = Bench(CODES)
    a, _ = bench.run_round("a", "b")

    a.fail(exit)
    bench.obey()

    ended = expected is not Consequence.RESTARTED
    assert expected is consequence(bench.job())
    assert (Outcome.FAILED if ended else None) is bench.job().outcome
    assert (0 if ended else 1) == bench.job().counts.restart_count


def test_code_of_a_victim_does_not_end_the_run() -> None:
    """Only the culprit's code counts."""
    bench = Bench(CODES)
    a, b = bench.run_round("a", "b")

    a.fail(worker_exit(1))
    b.fail(worker_exit(3))
    bench.obey()

    assert Consequence.RESTARTED is consequence(bench.job())


def test_no_crash_loop_when_turned_off() -> None:
    """With 0, the same early death can repeat until the budget is spent."""
    bench = fail_often(8, EARLY, crash_loop=0)

    assert (Phase.RUNNING, 8) == (bench.job().phase, bench.job().counts.restart_count)
