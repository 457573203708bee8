"""A worker that records its error has failed, although it still runs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.model.desired import DesiredRun, DesiredStop
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import FAILURES_MAX
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from rallypoint.server.core.rounds.rounds import EXIT_DUE_MS
from support.core.adoption import WINDOW_MS, orphans
from support.core.coordinator import Bench, consequence
from support.core.fake_agents import FakeAgent, worker_exit

NAN = "ValueError: loss is nan"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"


def recorded(age_ms: int = 0, *, local_rank: int = 0, said: str = NAN) -> WorkerExit:
    """Return the failure of a running worker that recorded its error `age_ms` ago."""
    return WorkerExit(
        local_rank,
        4_000 + local_rank,
        None,
        None,
        ran_ms=60_000,
        error=ErrorRecord(said, "", age_ms),
    )


def stopped(age_ms: int, outlived_ms: int) -> WorkerExit:
    """Return the end of that worker by our signal."""
    end = worker_exit(signal=15, said=NAN, prompted=True)
    error = ErrorRecord(NAN, "", age_ms)
    return replace(end, error=error, signalled_before_ms=outlived_ms)


def pair(**spec: object) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a bench with a started round of two nodes with 20 workers each."""
    bench = Bench(JobSpec(2, 2, **{"max_restarts": 3, **spec}))  # type: ignore[arg-type]
    a, b = bench.run_round("a", "b", workers=20)
    return bench, a, b


def culprit(bench: Bench) -> tuple[str, int]:
    failed = bench.the_verdict().culprit
    assert failed is not None
    return failed.name, failed.rank


def test_verdict_is_there_at_once_and_the_stop_follows() -> None:
    """The verdict names the worker as soon as its record is reported; the stop waits a moment."""
    bench, a, b = pair()

    a.record(recorded())

    assert (("a", 0), VerdictCause.WORKER_FAILED) == (culprit(bench), bench.the_verdict().cause)
    assert "was reported first: error recorded, still running, 1m" in bench.the_verdict().text
    assert NodeState.FAILED is a.known_node.state
    bench.advance(EXIT_DUE_MS - 1)
    assert isinstance(b.desired, DesiredRun)
    bench.advance(1)
    assert isinstance(b.desired, DesiredStop) and isinstance(a.desired, DesiredStop)


def test_exit_of_the_worker_ends_the_wait() -> None:
    """A worker that ends soon after its record keeps its own exit code."""
    bench, a, b = pair(no_retry_exit_codes=(17,))
    a.record(recorded())
    bench.advance(20)
    assert Phase.RUNNING is bench.job().phase

    a.fail(worker_exit(17, said=NAN))

    assert isinstance(b.desired, DesiredStop)
    bench.obey()
    assert (Outcome.FAILED, Consequence.NOT_RETRYABLE) == (
        bench.job().outcome,
        consequence(bench.job()),
    )


def test_its_end_is_the_same_failure() -> None:
    """The end is not a second failure: one restart, one failed worker, one group."""
    bench, a, _ = pair()
    a.record(recorded(250))
    bench.advance(EXIT_DUE_MS)
    bench.advance(3_000)

    a.exit(stopped(5_250, 3_000))

    verdict = bench.the_verdict()
    failed = "was reported first: error recorded, then signal 15 (SIGTERM), 54.8 s after its start"
    assert failed in verdict.text
    assert "it recorded its error 2.2 s before the stop signal" == verdict.evidence
    assert (0, 1) == (verdict.collateral_count, len(verdict.groups))
    assert "error recorded, then signal 15 (SIGTERM)" == verdict.groups[0].key[0]
    bench.obey()
    assert 1 == bench.job().counts.restart_count


def test_success_with_an_error_is_a_failure() -> None:
    """An agent that sends the error with exit code 0 says that the worker has failed."""
    bench, a, _ = pair()
    a.record(recorded())

    a.exit(replace(worker_exit(0), error=ErrorRecord(NAN, "", 100)))
    bench.obey()

    verdict = bench.job().history[-1].verdict
    assert verdict is not None and verdict.culprit is not None
    assert "error recorded, then exit code 0" in verdict.text
    assert 1 == bench.job().counts.restart_count


def test_repeated_records_count_once() -> None:
    """A second record of one worker, and one after its end, change nothing."""
    bench, a, _ = pair()
    a.record(recorded())
    a.record(recorded(said="ValueError: of the clean-up"))
    a.fail(worker_exit(1, said=NAN))
    job = bench.job()

    a.record(recorded(said="ValueError: too late"))

    assert job == bench.job()
    assert (NAN, 0) == (
        bench.the_verdict().text[-len(NAN) :],
        bench.the_verdict().collateral_count,
    )


def test_stall_between_record_and_end_changes_nothing() -> None:
    """The coordinator's clock is held back meanwhile; the error still came before our signal."""
    first = replace(recorded(100), at_ms=1_000, ran_ms=5_000)
    killed = WorkerExit(
        local_rank=0,
        pid=4_000,
        exit_code=None,
        signal=9,
        agent_signalled_first=True,
        at_ms=1_500,  # by a clock that missed 4.5 s
        ran_ms=10_000,
        signalled_before_ms=3_000,
    )

    assert killed.after_record(first).is_failure


def test_first_record_counts_although_the_clean_up_wrote_another() -> None:
    """The exit brings what the file holds last; the verdict keeps what it held first."""
    bench, a, _ = pair()
    a.record(recorded(100))
    bench.advance(300)

    a.fail(replace(worker_exit(1), error=ErrorRecord("ValueError: of the clean-up", "", 10)))

    exit = bench.the_verdict().culprit
    assert exit is not None and exit.exit.error == ErrorRecord(NAN, "", 400)


@pytest.mark.parametrize(
    ("claim", "first_ms", "second_ms", "expected"),
    [
        ("recorded later and reported first", 100, 3_000, "b"),
        ("recorded earlier and reported first", 3_000, 100, "a"),
        ("at the same time", 100, 100, "a"),
    ],
)
def test_first_record_is_the_cause(
    claim: str, first_ms: int, second_ms: int, expected: str
) -> None:
    """Of two nodes that report one after the other, the older record is the cause."""
    bench, a, b = pair()

    a.record(recorded(first_ms))
    b.record(recorded(second_ms))

    assert expected == bench.the_verdict().name, claim


def test_failure_is_the_first_one_only_once_the_round_has_ended() -> None:
    """While the round stops, an earlier failure may still be reported: the verdict names it."""
    bench, a, b = pair()
    a.fail()
    early = bench.the_verdict().text

    b.exit(replace(worker_exit(1), error=recorded(3_000).error))
    bench.obey()

    verdict = bench.the_verdict()
    assert "rank 0 (local rank 0, pid 4000) on node a was reported first: exit code 1" in early
    assert "on node b failed first: exit code 1" in verdict.text
    assert verdict.evidence.startswith("rank 0 on node a was reported first, but it failed 3 s ")


def test_record_outranks_a_later_crash_that_was_reported_first() -> None:
    """A report that comes late does not make its failure late: what counts is its age."""
    bench, a, b = pair()
    b.fail(worker_exit(signal=11))
    bench.advance(50)

    a.record(recorded(3_000))

    assert ("a", 0) == culprit(bench)
    assert "rank 20 on node b was reported first, but it failed 2.95 s later" == (
        bench.the_verdict().evidence
    )


def test_order_of_equal_errors_is_no_evidence() -> None:
    """Whichever of them is named, the cause is the same."""
    bench, a, b = pair()
    b.fail(worker_exit(1, said="RuntimeError: no data"))
    bench.advance(50)

    a.record(recorded(3_000, said="RuntimeError: no data"))

    assert ("a", 0) == culprit(bench)
    assert "" == bench.the_verdict().evidence


def test_hung_worker_is_named_and_not_the_one_that_fails_3_s_later() -> None:
    """The first recorded failure is the cause, also when another worker ends first."""
    bench, a, b = pair(shutdown_timeout_ms=30_000)
    a.record(recorded())
    bench.advance(3_000)
    b.fail(worker_exit(1, said="RuntimeError: no answer"))

    assert ("a", 0) == culprit(bench)
    bench.advance(27_000)
    a.exit(stopped(30_000, 29_600))
    bench.obey()
    assert ("a", 0) == culprit(bench)
    assert 1 == bench.job().counts.restart_count


def test_recorded_victim_is_no_cause() -> None:
    """A record that is typical of a lost peer explains nothing, even if it is the first."""
    bench, a, b = pair()

    a.record(recorded(500, said=RESET))
    assert Phase.RUNNING is bench.job().phase
    b.record(recorded(100))

    assert ("b", 20) == culprit(bench)


def test_age_is_at_most_the_running_time() -> None:
    """A clock that jumps does not let a worker fail before it was started."""
    bench, a, b = pair()
    b.record(replace(recorded(2_000), ran_ms=60_000))

    a.record(replace(recorded(3_600_000), ran_ms=1_000))

    assert ("b", 20) == culprit(bench)


def test_first_failure_is_kept_behind_any_number_of_others() -> None:
    """The earliest failure is kept whole, even if it is reported after FAILURES_MAX others."""
    bench, a, b = pair()
    a.record(*(recorded(local_rank=rank) for rank in range(FAILURES_MAX)))

    b.record(recorded(3_000))

    assert ("b", 20) == culprit(bench)


def test_lone_worker_keeps_its_exit_code() -> None:
    """A worker without peers that records and then ends is not signalled in between."""
    bench = Bench(JobSpec(max_restarts=1))
    (a,) = bench.run_round("a")

    a.record(recorded())
    assert isinstance(a.desired, DesiredRun)
    a.fail(worker_exit(1, said=NAN))

    assert "exit code 1" in bench.the_verdict().text


@pytest.mark.parametrize("signalled", [False, True])
def test_crash_loop_sees_one_signature(signalled: bool) -> None:
    """The same early error is a crash loop, whether the agent's signal or the error ends it."""
    bench = Bench(JobSpec(2, 2, max_restarts=9, crash_loop=2, restart_backoff_ms=0))
    a, _ = bench.run_round("a", "b")
    a.record(replace(recorded(), ran_ms=2_000))
    bench.advance(EXIT_DUE_MS)
    a.exit(replace(stopped(400, 0), ran_ms=2_400, signalled_before_ms=10))
    bench.obey()

    end = replace(worker_exit(1, said=NAN), ran_ms=2_000)
    if signalled:
        end = replace(stopped(400, 10), ran_ms=2_400)
    a.fail(end)
    bench.obey()

    assert Consequence.CRASH_LOOP is consequence(bench.job())


def test_coordinator_without_memory_learns_of_a_recorded_failure() -> None:
    """A Hello carries the failure of a running worker, with its age then: it is no failed start."""
    bench, (a, b, c) = orphans()
    a.hello(held=a.held_round(NodeState.FAILED, [recorded(600)]))
    bench.advance(2_000)
    b.hello(held=b.held_round(NodeState.FAILED, [recorded(1_000)]))
    c.hello(held=c.held_round())
    bench.advance(WINDOW_MS)

    verdict = bench.the_verdict()
    assert (VerdictCause.WORKER_FAILED, "a") == (verdict.cause, verdict.name)
    assert isinstance(c.desired, DesiredStop)


def test_record_before_the_adoption_is_kept() -> None:
    """A report that comes before the round could be adopted adds to the held round."""
    bench, agents = orphans()
    for agent in agents:
        agent.hello(held=agent.held_round())
    agents[0].record(recorded(100))
    agents[0].record(recorded(200))
    bench.advance(WINDOW_MS)

    assert ("a", 0) == culprit(bench)
