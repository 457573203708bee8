"""Workers fail: what stops, what is charged, which worker is named, and when the run ends."""

from __future__ import annotations

import cProfile

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.desired import DesiredStop
from rallypoint.server.core.model.node import Eligibility
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import FAILURES_MAX, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from rallypoint.server.core.step import step
from rallypoint.server.core.verdicts.blame import describe_exit, error_text
from support.core.coordinator import Bench, consequence
from support.core.decisions import RoundSettled
from support.core.fake_agents import finished, stop_reason, worker_exit
from support.core.rounds import pair

SPEC = JobSpec()
PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=3)


def settlements(bench: Bench) -> list[RoundSettled]:
    return [record for record in bench.decisions if isinstance(record, RoundSettled)]


def test_failure_stops_all_nodes_at_once() -> None:
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
    """Only an exit other than 0 that the agent did not cause stops the round."""
    bench, a, _ = pair()

    a.exit(exit)

    assert phase is bench.job().phase, claim


def test_next_round_waits_for_every_survivor() -> None:
    """No round begins before every member has reported that it is clean."""
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

    verdict = bench.the_verdict()
    assert (1, 1) == (bench.job().counts.restart_count, len(settlements(bench)))
    assert verdict.culprit is not None
    assert ("a", 0, 3) == (verdict.name, verdict.culprit.rank, verdict.collateral_count)
    assert [1, 2, 7] == [failed.rank for failed in verdict.collateral]


def test_all_members_get_the_same_restart_count() -> None:
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

    verdict = bench.the_verdict()
    assert (FAILURES_MAX - 1, 39) == (len(verdict.collateral), verdict.collateral_count)


def test_failure_of_an_earlier_round_is_ignored() -> None:
    """An exit of a round that is over changes nothing in the next one."""
    bench, a, b = pair()
    a.fail()
    bench.obey()
    b.last_round = 1

    b.fail()

    assert (Phase.RUNNING, 2) == (bench.job().phase, bench.job().round_number)


def test_last_failure_ends_the_run_by_name() -> None:
    """With no restarts left, the run fails, and the verdict names rank, node, exit and error."""
    bench, a, b = pair(max_restarts=0, workers=2)

    b.fail(worker_exit(3, local_rank=1, said="Traceback\nValueError: no data\n", ran_ms=2_500))
    bench.obey()

    order = finished(a)
    assert order.verdict is not None
    assert order == finished(b)
    assert (Outcome.FAILED, VerdictCause.WORKER_FAILED, Consequence.BUDGET_SPENT) == (
        order.outcome,
        order.verdict.cause,
        order.verdict.consequence,
    )
    assert (
        "rank 3 (local rank 1, pid 4001) on node b failed first: exit code 3, "
        "2.5 s after its start: ValueError: no data"
    ) == order.verdict.text


@pytest.mark.parametrize(
    ("exit", "expected"),
    [
        (worker_exit(signal=9), "signal 9 (SIGKILL), 1.0 s after its start"),
        (worker_exit(3), "exit code 3, 1.0 s after its start; last output: no data"),
    ],
)
def test_last_output_is_not_told_as_the_cause(exit: WorkerExit, expected: str) -> None:
    """What a killed worker wrote last is left out; after an exit code it is named as output."""
    bench, a, _ = pair(max_restarts=0)
    noise = "no data\n/srv/train.py:4: FutureWarning: x is old\n  warnings.warn('x is old')\n"

    a.fail(replace(exit, stderr_tail=noise, ran_ms=1_000))
    bench.obey()

    order = finished(a)
    assert order.verdict is not None
    assert order.verdict.text.endswith(f"failed first: {expected}")
    assert [expected.partition("; ")[2]] == [group.error for group in order.verdict.groups]


def test_budget_is_spent_exactly() -> None:
    """`max_restarts` failures are restarted; the one after them ends the run."""
    bench, a, _ = pair(max_restarts=2)
    for expected in (1, 2):
        a.fail()
        bench.obey()
        assert (Phase.RUNNING, expected) == (bench.job().phase, bench.job().counts.restart_count)

    a.fail()
    bench.obey()

    assert (Outcome.FAILED, 2) == (finished(a).outcome, finished(a).restart_count)


def test_outcome_is_decided_when_all_members_are_clean() -> None:
    """The run does not end while a member is still stopping."""
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
    ("said", "expected"),
    [
        ("RuntimeError: killed by signal: Killed. ", "RuntimeError: killed by signal: Killed"),
        ("ValueError: and so on...", "ValueError: and so on..."),
    ],
)
def test_a_clause_may_follow_an_error(said: str, expected: str) -> None:
    """So a sentence of torch's loses its full stop."""
    assert expected == error_text(worker_exit(1, said=said))


@pytest.mark.parametrize(
    ("exit", "expected"),
    [
        (worker_exit(1), "exit code 1"),
        (worker_exit(signal=9), "signal 9 (SIGKILL)"),
        (worker_exit(signal=5), "signal 5 (SIGTRAP)"),
        (worker_exit(signal=63), "signal 63"),
        (WorkerExit(0, 4_000, None, 9, oom_killed=True), "killed by the kernel's OOM killer"),
    ],
)
def test_exits_are_described(exit: WorkerExit, expected: str) -> None:
    """An exit is named by its code, or by the number and name of its signal."""
    assert expected == describe_exit(exit)


def test_node_that_cannot_start_is_charged_and_named() -> None:
    """Workers that cannot start are a failure, with the node's reason."""
    bench = Bench(PAIR)
    _, b = bench.join("a", "b")

    b.fail_to_start("train: No such file or directory")
    bench.obey()

    verdict = bench.the_verdict()
    assert (1, VerdictCause.START_FAILED, "b") == (
        bench.job().counts.restart_count,
        verdict.cause,
        verdict.name,
    )
    assert "node b could not start its workers: train: No such file or directory" == verdict.text


def test_node_that_can_never_start_ends_the_run_at_once() -> None:
    """No restart can cure it, so none is charged, and the verdict says so."""
    bench = Bench(PAIR)
    _, b = bench.join("a", "b")

    b.fail_to_start("cannot run /no/python: No such file or directory", is_permanent=True)
    bench.obey()

    verdict, job = bench.the_verdict(), bench.job()
    assert (Outcome.FAILED, 0, Consequence.ENDED) == (
        job.outcome,
        job.counts.restart_count,
        verdict.consequence,
    )
    assert (
        "node b could not start its workers: cannot run /no/python: No such file or directory; "
        "no restart can cure that"
    ) == verdict.text
    bench.check_journal()


def test_node_that_can_never_start_is_replaced_by_a_spare() -> None:
    """It is quarantined at once, and the next round is formed without it."""
    bench = Bench(PAIR)
    _, b, _ = bench.join("a", "b", "c")

    b.fail_to_start("no such file", is_permanent=True)
    bench.obey()

    assert 1 == bench.job().counts.restart_count
    assert Eligibility.QUARANTINED is b.known_node.eligibility
    assert ["a", "c"] == bench.order()


def test_refusal_after_the_stop_is_not_the_cause() -> None:
    """A node that does not start a round that is already stopping is not the cause."""
    bench = Bench(PAIR)
    a, b = bench.join("a", "b")
    a.start()
    a.fail()

    b.fail_to_start("the round is stopped")
    bench.obey()

    assert (VerdictCause.WORKER_FAILED, "a") == (
        bench.the_verdict().cause,
        bench.the_verdict().name,
    )


def test_refusal_because_the_node_leaves_is_not_charged() -> None:
    """A node that leaves instead of starting has left; nothing is charged."""
    bench = Bench(PAIR)
    _, b = bench.join("a", "b")

    b.leave("draining")
    b.goodbye()
    bench.obey()

    assert (0, VerdictCause.NODE_LEFT) == (
        bench.job().counts.restart_count,
        bench.the_verdict().cause,
    )
    assert ["b"] == [departure.name for departure in bench.job().lost]


def test_history_has_every_round() -> None:
    """The history has each round's begin and end reasons, and the time to the recovery."""
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


@pytest.mark.parametrize("codes", [1, 255])
@pytest.mark.parametrize("text", ["t" * 400, "\n" * 16_384])
def test_thousands_of_failures_cost_little_each(codes: int, text: str) -> None:
    """Of 4,096 failures in one report, each costs few calls, whatever its worker has written."""
    bench = Bench(JobSpec(max_nodes=1))
    (agent,) = bench.run_round("a", workers=4_096)
    error = ErrorRecord("m", text)
    whole = (replace(worker_exit(local_rank=rank), error=error) for rank in range(64))
    others = (worker_exit(rank % codes + 1, local_rank=rank) for rank in range(64, 4_096))
    report = inputs.Exited(agent.sender(agent.sequence + 1), 1, (*whole, *others))
    counted = cProfile.Profile()
    counted.runcall(step, bench.state, report, bench.now_ms)
    calls = sum(entry.callcount for entry in counted.getstats())

    assert calls < 120 * 4_096
