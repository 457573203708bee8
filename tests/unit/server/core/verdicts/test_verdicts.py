"""The verdict names the culprit, even when its victims were reported first."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.model.desired import DesiredRun, DesiredStop
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import FAILURES_MAX
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.core.model.worker import ErrorRecord, Symptom, WorkerExit
from rallypoint.server.core.rounds.rounds import CULPRIT_DUE_MS
from support.core.coordinator import Bench, consequence
from support.core.fake_agents import FakeAgent, worker_exit

RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
NAN = "ValueError: loss is nan"
KILLED = worker_exit(signal=9)


def victim(local_rank: int = 0, exit_code: int = 1) -> WorkerExit:
    return worker_exit(exit_code, local_rank=local_rank, said=RESET)


def pair(**spec: object) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a bench with a started round of two nodes with 20 workers each."""
    bench = Bench(JobSpec(2, 2, **{"max_restarts": 3, **spec}))  # type: ignore[arg-type]
    a, b = bench.run_round("a", "b", workers=20)
    return bench, a, b


def culprit(bench: Bench) -> tuple[str, int]:
    failed = bench.the_verdict().culprit
    assert failed is not None
    return failed.name, failed.rank


def test_stop_waits_a_moment_when_only_victims_failed() -> None:
    """The verdict can be read at once; the stop waits for the culprit, up to a limit."""
    bench, a, b = pair()

    a.fail(victim())
    assert (Phase.RUNNING, ("a", 0)) == (bench.job().phase, culprit(bench))
    bench.advance(CULPRIT_DUE_MS - 1)
    assert isinstance(b.desired, DesiredRun)

    bench.advance(1)

    assert isinstance(b.desired, DesiredStop)
    assert ["culprit_awaited", "round_stopped"] == bench.events()[-2:]


def test_further_victims_do_not_make_the_wait_longer() -> None:
    """The wait counts from the first failure."""
    bench, a, b = pair()
    a.fail(victim())
    bench.advance(CULPRIT_DUE_MS - 1)

    b.fail(victim())
    bench.advance(1)

    assert Phase.STOPPING is bench.job().phase


@pytest.mark.parametrize(
    ("claim", "exit"),
    [
        ("killed", KILLED),
        ("its own error", worker_exit(said=NAN)),
        ("an exit without output", worker_exit(17)),
    ],
)
def test_culprit_ends_the_wait(claim: str, exit: WorkerExit) -> None:
    """A failure with its own cause stops the round at once and is named, with the evidence."""
    bench, a, b = pair()
    a.fail(victim(3))
    bench.advance(20)

    b.fail(exit)

    verdict = bench.the_verdict()
    assert (Phase.STOPPING, ("b", 20)) == (bench.job().phase, culprit(bench)), claim
    assert [3] == [failed.rank for failed in verdict.collateral]
    assert verdict.evidence == (
        "rank 3 on node a was reported first, but its error is typical of a lost peer: " + RESET
    )


def test_culprit_that_is_reported_first_stops_at_once() -> None:
    """Its victims, a moment later, change nothing."""
    bench, a, b = pair()

    b.fail(KILLED)
    assert Phase.STOPPING is bench.job().phase
    a.fail(*(victim(rank) for rank in range(20)))

    verdict = bench.the_verdict()
    assert (("b", 20), "", 20) == (culprit(bench), verdict.evidence, verdict.collateral_count)
    assert ["signal 9 (SIGKILL)", "exit code 1"] == [group.key[0] for group in verdict.groups]
    assert [((20, 20),), ((0, 19),)] == [group.ranks for group in verdict.groups]
    assert [False, True] == [group.is_victim for group in verdict.groups]


def test_no_wait_when_no_worker_is_left() -> None:
    """The round stops at once when a worker is alone or when all have failed."""
    alone = Bench(JobSpec())
    (a,) = alone.run_round("a")
    a.fail(victim())
    bench, a, b = pair()
    a.fail(*(victim(rank) for rank in range(20)))
    b.fail(*(victim(rank) for rank in range(20)))

    assert [Phase.STOPPING] * 2 == [alone.job().phase, bench.job().phase]
    assert ("", False) == (alone.the_verdict().evidence, alone.the_verdict().groups[0].is_victim)


def test_a_lost_node_ends_the_wait_and_explains_it() -> None:
    """Broken connections and then a lost node: the node is the cause, and nothing is charged."""
    bench, a, b = pair()
    a.fail(victim())
    b.goodbye()
    bench.obey()

    assert (VerdictCause.NODE_LEFT, "b", 0) == (
        bench.the_verdict().cause,
        bench.the_verdict().name,
        bench.job().counts.restart_count,
    )


def test_verdict_is_corrected_while_the_round_stops() -> None:
    """A culprit that is reported after the stop corrects the verdict at once, and is charged."""
    bench, a, b = pair(no_retry_exit_codes=(17,))
    a.fail(victim())
    bench.advance(CULPRIT_DUE_MS)
    assert (Phase.STOPPING, ("a", 0)) == (bench.job().phase, culprit(bench))
    stop = b.desired

    b.fail(worker_exit(17))

    assert (("b", 20), "verdict_corrected") == (culprit(bench), bench.events()[-1])
    assert stop == b.desired
    bench.obey()
    assert (Outcome.FAILED, Consequence.NOT_RETRYABLE) == (
        bench.job().outcome,
        consequence(bench.job()),
    )


def test_culprit_is_found_behind_any_number_of_victims() -> None:
    """Victims make room for the failure that may be the culprit."""
    bench, a, b = pair()
    a.fail(*(victim(rank) for rank in range(20)))
    b.fail(*(victim(rank) for rank in range(19)))
    assert ("a", 0) == culprit(bench)

    b.fail(worker_exit(signal=11, local_rank=19))
    bench.obey()

    verdict = bench.the_verdict()
    assert (("b", 39), 39) == (culprit(bench), verdict.collateral_count)
    assert list(range(FAILURES_MAX - 1)) == [failed.rank for failed in verdict.collateral]
    assert [39, 1] == [group.count for group in verdict.groups]
    assert (Consequence.RESTARTED, 1) == (
        consequence(bench.job()),
        bench.job().counts.restart_count,
    )


def test_first_victim_is_named_when_only_victims_failed() -> None:
    """Among victims only, the first one reported is named, and the verdict says so."""
    bench, a, b = pair()

    b.fail(victim(1))
    a.fail(victim(2))
    bench.advance(CULPRIT_DUE_MS)
    bench.obey()

    verdict = bench.the_verdict()
    assert ("b", 21) == culprit(bench)
    assert verdict.evidence == (
        "it failed first; its error is typical of a lost peer, but no other worker reported a cause"
    )


@pytest.mark.parametrize(
    ("claim", "first", "second", "expected"),
    [
        ("two causes", worker_exit(said=NAN), KILLED, "a"),
        ("a silent end, then a cause", worker_exit(1), worker_exit(said=NAN), "b"),
        ("a silent end, then a crash", worker_exit(1), KILLED, "b"),
        ("a silent end, then another", worker_exit(1), worker_exit(3), "a"),
        ("a chosen exit code, then a cause", worker_exit(17), worker_exit(said=NAN), "a"),
        (
            "a SIGTERM from outside, then a cause",
            worker_exit(signal=15),
            worker_exit(said=NAN),
            "b",
        ),
        ("a victim, then a silent end", victim(), worker_exit(1), "b"),
    ],
)
def test_named_node(claim: str, first: WorkerExit, second: WorkerExit, expected: str) -> None:
    """A cause outranks an exit that says nothing; the order of arrival decides between equals."""
    bench, a, b = pair()

    a.fail(first)
    b.fail(second)
    bench.obey()

    verdict = bench.the_verdict()
    assert expected == verdict.name, claim
    assert (expected == "a") == (verdict.evidence == "")


@pytest.mark.parametrize(("code", "expected"), [(1, ("b", 20)), (17, ("a", 0))])
def test_order_of_reports_decides_nothing(code: int, expected: tuple[str, int]) -> None:
    """Both have failed without a coordinator, and the later one returns to it first.

    A bare exit with 1 says nothing, so the crash counts. A chosen code is a cause: it was first.
    """
    bench, a, b = pair()
    bench.advance(2_000)

    b.fail(replace(KILLED, ago_ms=700))
    a.fail(replace(worker_exit(code), ago_ms=1_000))
    bench.obey()

    assert expected == culprit(bench)


def stopped(recorded_ms: int | None, signalled_ms: int | None, said: str = NAN) -> WorkerExit:
    """Return the exit of a worker that the agent had signalled and that recorded an error."""
    return WorkerExit(
        0,
        4_000,
        None,
        15,
        agent_signalled_first=True,
        ran_ms=2_000,
        error=ErrorRecord(said, before_exit_ms=recorded_ms),
        signalled_before_ms=signalled_ms,
    )


@pytest.mark.parametrize(
    ("claim", "exit", "is_failure"),
    [
        ("recorded, then signalled", stopped(480, 30), True),
        ("signalled, then recorded", stopped(20, 30), False),
        ("in the same millisecond", stopped(30, 30), False),
        ("a record without a time", stopped(None, 30), False),
        ("a signal without a time", stopped(480, None), False),
        ("no record", worker_exit(signal=15, prompted=True), False),
    ],
)
def test_record_older_than_our_signal(claim: str, exit: WorkerExit, is_failure: bool) -> None:
    """A worker that recorded its error before the signal is a failure, whatever ended it."""
    bench, a, b = pair()
    a.fail(victim(1))
    bench.advance(CULPRIT_DUE_MS)

    b.exit(exit)
    bench.obey()

    assert is_failure == exit.is_failure, claim
    assert (("b", 20) if is_failure else ("a", 1)) == culprit(bench)


def test_recorded_error_has_its_age_in_the_verdict() -> None:
    """The verdict names the recorded error and how long before the stop it was written."""
    bench, a, b = pair()
    a.fail(victim(1))
    bench.advance(CULPRIT_DUE_MS)

    b.exit(stopped(480, 30))

    verdict = bench.the_verdict()
    failed = "failed: error recorded, then signal 15 (SIGTERM), 1.5 s after its start"
    assert verdict.text.endswith(f"{failed}: {NAN}")
    assert verdict.evidence.endswith("; it recorded its error 0.5 s before the stop signal")


def test_recorded_error_of_a_victim_is_collateral() -> None:
    """A broken connection is no cause, even when it was recorded first."""
    bench, a, b = pair()
    a.fail(worker_exit(said=NAN))

    b.exit(stopped(480, 30, said=RESET))
    bench.obey()

    assert (("a", 0), 1) == (culprit(bench), bench.the_verdict().collateral_count)
    assert Symptom.VICTIM is bench.the_verdict().collateral[0].symptom


def test_oom_kill_has_a_name() -> None:
    """The verdict names the OOM killer when the kernel reports the kill."""
    bench, a, _ = pair()

    a.fail(WorkerExit(0, 4_000, None, 9, ran_ms=100, oom_killed=True))

    assert "killed by the kernel's OOM killer" in bench.the_verdict().text
    assert "killed by the kernel's OOM killer" == bench.the_verdict().groups[0].key[0]
