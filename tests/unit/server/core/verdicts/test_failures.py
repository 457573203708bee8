"""Workers fail: what is stopped, what is charged, who is blamed, and when it ends the run."""

from __future__ import annotations

import pytest

from rallypoint.server.core.blame import describe_exit
from rallypoint.server.core.effects import DesiredStop, RoundSettled
from rallypoint.server.core.failures import (
    CRASH_YOUNG_MS,
    JITTER,
    compute_backoff_ms,
)
from rallypoint.server.core.model import (
    FAILURES_MAX,
    Consequence,
    JobId,
    JobSpec,
    Outcome,
    Phase,
    RoundReason,
    Verdict,
    VerdictCause,
    WaitKind,
    WorkerExit,
)
from support.coordinator import Bench, consequence
from support.fake_agents import FakeAgent, finished, stop_reason, worker_exit

SPEC = JobSpec()
PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=3)


def pair(max_restarts: int = 3, **facts: object) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a bench with a started round of two nodes."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2, max_restarts=max_restarts))
    a, b = bench.run_round("a", "b", **facts)
    return bench, a, b


def the_verdict(bench: Bench) -> Verdict:
    verdict = bench.job().verdict
    assert verdict is not None
    return verdict


def settlements(bench: Bench) -> list[RoundSettled]:
    return [record for record in bench.records if isinstance(record, RoundSettled)]


def test_failure_stops_everybody_at_once() -> None:
    """The first report of a failure stops the round on every node in the same step."""
    bench, a, b = pair()

    a.fail()

    assert [RoundReason.WORKER_FAILED] * 2 == [stop_reason(a), stop_reason(b)]
    assert (Phase.STOPPING, Consequence.UNDECIDED) == (bench.job().phase, consequence(bench.job()))


@pytest.mark.parametrize(
    ("claim", "exit", "phase"),
    [
        ("exit code 1", worker_exit(1), Phase.STOPPING),
        ("a signal", worker_exit(signal=9), Phase.STOPPING),
        ("exit code 0", worker_exit(0), Phase.RUNNING),
        ("1 after our signal", worker_exit(1, prompted=True), Phase.RUNNING),
        ("a signal after our signal", worker_exit(signal=15, prompted=True), Phase.RUNNING),
    ],
)
def test_what_a_failure_is(claim: str, exit: WorkerExit, phase: Phase) -> None:
    """Only an end that nobody asked for and that is not 0 stops the round."""
    bench, a, _ = pair()

    a.exit(exit)

    assert phase is bench.job().phase, claim


def test_next_round_waits_for_every_survivor() -> None:
    """No round begins while a member has not said that it is clean."""
    bench, a, b = pair()
    a.fail()
    a.obey()
    assert (Phase.STOPPING, 1) == (bench.job().phase, len(bench.rounds()))

    b.obey()

    assert (Phase.RUNNING, 2) == (bench.job().phase, len(bench.rounds()))


def test_ready_of_an_earlier_round_does_not_count() -> None:
    """A Ready that is older than the node's place in the round does not make it clean."""
    bench, a, b = pair()
    a.fail()
    a.obey()

    b.ready(round=0)

    assert Phase.STOPPING is bench.job().phase


def test_many_failures_are_one_restart() -> None:
    """Failures of many workers on many nodes in one round are charged as one restart."""
    bench, a, b = pair(workers=4)
    a.fail(worker_exit(1, local_rank=0), worker_exit(1, local_rank=1))
    a.fail(worker_exit(1, local_rank=2))
    b.fail(worker_exit(signal=6, local_rank=3))

    bench.obey()

    verdict = the_verdict(bench)
    assert (1, 1) == (bench.job().restart_count, len(settlements(bench)))
    assert verdict.culprit is not None
    assert ("a", 0, 3) == (verdict.name, verdict.culprit.rank, verdict.collateral_count)
    assert [1, 2, 7] == [failed.rank for failed in verdict.collateral]


def test_restart_count_is_the_same_for_everybody() -> None:
    """Every round carries the restarts charged so far, in its header for all members."""
    bench, a, _ = pair()

    a.fail()
    bench.obey()
    a.fail()
    bench.obey()

    assert [0, 1, 2] == [header.restart_count for header in bench.rounds()]
    assert [1, 2, 3] == [header.number for header in bench.rounds()]


def test_exit_that_is_reported_twice_counts_once() -> None:
    """The same local rank can end only once in a round."""
    bench, a, _ = pair()

    a.fail(worker_exit(1))
    a.fail(worker_exit(7))

    round = bench.job().round
    assert round is not None
    assert (1, 1) == (round.failure_count, len(round.failures))


def test_failures_beyond_the_limit_are_only_counted() -> None:
    """A round keeps a limited number of failures whole and counts the others."""
    bench, a, _ = pair(workers=40)

    a.fail(*(worker_exit(1, local_rank=rank) for rank in range(40)))
    bench.obey()

    verdict = the_verdict(bench)
    assert (FAILURES_MAX - 1, 39) == (len(verdict.collateral), verdict.collateral_count)


def test_failure_of_an_earlier_round_is_old_news() -> None:
    """An exit of a round that is over changes nothing in the next one."""
    bench, a, b = pair()
    a.fail()
    bench.obey()
    b.held = 1

    b.fail()

    assert (Phase.RUNNING, 2) == (bench.job().phase, bench.job().round_number)


def test_last_failure_ends_the_run_by_name() -> None:
    """With no restarts left the run fails, and the verdict names rank, node, exit and error."""
    bench, a, b = pair(max_restarts=0, workers=2)

    b.fail(worker_exit(3, local_rank=1, said="Traceback\nValueError: no data\n", ran_ms=2_500))
    bench.obey()

    told = finished(a)
    assert told.verdict is not None
    assert told == finished(b)
    assert (Outcome.FAILED, VerdictCause.WORKER_FAILED, Consequence.BUDGET_SPENT) == (
        told.outcome,
        told.verdict.cause,
        told.verdict.consequence,
    )
    assert (
        "rank 3 (local rank 1, pid 4001) on node b failed first: exit code 3, "
        "2.5 s after its start: ValueError: no data"
    ) == told.verdict.text


def test_budget_is_spent_exactly() -> None:
    """`max_restarts` failures are restarted; the one after them ends the run."""
    bench, a, _ = pair(max_restarts=2)
    for expected in (1, 2):
        a.fail()
        bench.obey()
        assert (Phase.RUNNING, expected) == (bench.job().phase, bench.job().restart_count)

    a.fail()
    bench.obey()

    assert (Outcome.FAILED, 2) == (finished(a).outcome, finished(a).restart_count)


def test_outcome_is_decided_when_everybody_is_clean() -> None:
    """While a member is still stopping, not even the last failure has ended the run."""
    bench, a, b = pair(max_restarts=0)

    a.fail()
    a.obey()

    assert isinstance(b.desired, DesiredStop)
    assert bench.job().outcome is None


def test_stop_is_ordered_once() -> None:
    """Later failures of a stopped round cost no further message."""
    _, a, b = pair(workers=2)
    a.fail()
    revision = b.revision

    a.fail(worker_exit(1, local_rank=1))
    b.fail()

    assert revision == b.revision


@pytest.mark.parametrize(
    ("exit", "expected"),
    [
        (worker_exit(1), "exit code 1"),
        (worker_exit(signal=9), "signal 9 (SIGKILL)"),
        (worker_exit(signal=63), "signal 63"),
    ],
)
def test_exits_are_described(exit: WorkerExit, expected: str) -> None:
    """An exit is named by its code, or by the number and name of its signal."""
    assert expected == describe_exit(exit)


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
    """The third restart in a row waits for its pause although everybody is ready."""
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
    [(SPEC.progress_ms, Phase.RUNNING), (SPEC.progress_ms - 1, Phase.FORMING)],
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
        assert Consequence.CRASH_LOOP is consequence(bench.job())


def test_four_equal_deaths_are_no_loop() -> None:
    """One death fewer than the limit is restarted."""
    bench = fail_often(SPEC.crash_loop - 1, EARLY)

    assert (Phase.RUNNING, Consequence.RESTARTED) == (bench.job().phase, consequence(bench.job()))


CODES = JobSpec(2, 2, max_restarts=9, no_retry=(3, 65), no_requeue=(4,))


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
    """The culprit's exit code decides whether the run goes on; restarts that are left do not."""
    bench = Bench(CODES)
    a, _ = bench.run_round("a", "b")

    a.fail(exit)
    bench.obey()

    ended = expected is not Consequence.RESTARTED
    assert expected is consequence(bench.job())
    assert (Outcome.FAILED if ended else None) is bench.job().outcome
    assert (0 if ended else 1) == bench.job().restart_count


def test_code_of_a_victim_does_not_end_the_run() -> None:
    """Only the culprit's code counts."""
    bench = Bench(CODES)
    a, b = bench.run_round("a", "b")

    a.fail(worker_exit(1))
    b.fail(worker_exit(3))
    bench.obey()

    assert Consequence.RESTARTED is consequence(bench.job())


def test_no_crash_loop_when_turned_off() -> None:
    """With 0 the same early death may come as often as the budget allows."""
    bench = fail_often(8, EARLY, crash_loop=0)

    assert (Phase.RUNNING, 8) == (bench.job().phase, bench.job().restart_count)


def test_node_that_cannot_start_is_charged_and_named() -> None:
    """Workers that cannot be started are a failure with the node's words."""
    bench = Bench(PAIR)
    _, b = bench.join("a", "b")

    b.refuse("train: No such file or directory")
    bench.obey()

    verdict = the_verdict(bench)
    assert (1, VerdictCause.CANNOT_START, "b") == (
        bench.job().restart_count,
        verdict.cause,
        verdict.name,
    )
    assert "node b could not start its workers: train: No such file or directory" == verdict.text


def test_refusal_after_the_stop_does_not_take_the_blame() -> None:
    """A node that refuses to start a round which is stopped already is not the cause."""
    bench = Bench(PAIR)
    a, b = bench.join("a", "b")
    a.start()
    a.fail()

    b.refuse("the round is stopped")
    bench.obey()

    assert (VerdictCause.WORKER_FAILED, "a") == (the_verdict(bench).cause, the_verdict(bench).name)


def test_refusal_because_the_node_leaves_is_not_charged() -> None:
    """A node that does not start because it leaves has left; nothing is charged."""
    bench = Bench(PAIR)
    _, b = bench.join("a", "b")

    b.refuse("draining", leaving=True)
    b.goodbye()
    bench.obey()

    assert (0, VerdictCause.NODE_LEFT) == (bench.job().restart_count, the_verdict(bench).cause)
    assert ["b"] == [departure.name for departure in bench.job().lost]


def test_history_tells_every_round() -> None:
    """Each ended round is remembered with why it began and ended, and how fast it recovered."""
    bench, a, _ = pair(max_restarts=1)
    bench.advance(7_000)
    a.fail()
    bench.advance(1_500)
    bench.obey()
    a.fail()
    bench.obey()

    first, second = bench.job().history
    assert (RoundReason.FIRST, RoundReason.WORKER_FAILED, 7_000, None) == (
        first.began,
        first.ended,
        first.lasted_ms,
        first.recovered_after_ms,
    )
    assert (RoundReason.WORKER_FAILED, RoundReason.WORKER_FAILED, 0, 1_500) == (
        second.began,
        second.ended,
        second.lasted_ms,
        second.recovered_after_ms,
    )
