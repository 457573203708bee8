"""The verdict names the culprit, also when its victims were reported before it."""

from __future__ import annotations

import pytest

from rallypoint.server.core.effects import DesiredRun, DesiredStop
from rallypoint.server.core.model import (
    FAILURES_MAX,
    Consequence,
    ErrorRecord,
    JobSpec,
    Outcome,
    Phase,
    Symptom,
    Verdict,
    VerdictCause,
    WorkerExit,
)
from rallypoint.server.core.rounds import CULPRIT_DUE_MS
from support.coordinator import Bench, consequence
from support.fake_agents import FakeAgent, worker_exit

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


def the_verdict(bench: Bench) -> Verdict:
    verdict = bench.job().verdict
    assert verdict is not None
    return verdict


def culprit(bench: Bench) -> tuple[str, int]:
    found = the_verdict(bench).culprit
    assert found is not None
    return found.name, found.rank


def test_round_goes_on_for_a_moment_when_only_victims_failed() -> None:
    """A finding can be read at once; the stop waits for the culprit, and not longer than it may."""
    bench, a, b = pair()

    a.fail(victim())
    assert (Phase.RUNNING, ("a", 0)) == (bench.job().phase, culprit(bench))
    bench.advance(CULPRIT_DUE_MS - 1)
    assert isinstance(b.desired, DesiredRun)

    bench.advance(1)

    assert isinstance(b.desired, DesiredStop)
    assert ["culprit_awaited", "round_stopped"] == bench.events()[-2:]


def test_further_victims_do_not_make_the_wait_longer() -> None:
    """The moment counts from the first failure."""
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
        ("an error of its own", worker_exit(said=NAN)),
        ("an exit without a word", worker_exit(17)),
    ],
)
def test_culprit_ends_the_wait(claim: str, exit: WorkerExit) -> None:
    """A failure that is no victim's stops the round at once and is named, with why."""
    bench, a, b = pair()
    a.fail(victim(3))
    bench.advance(20)

    b.fail(exit)

    verdict = the_verdict(bench)
    assert (Phase.STOPPING, ("b", 20)) == (bench.job().phase, culprit(bench)), claim
    assert [3] == [failed.rank for failed in verdict.collateral]
    assert verdict.evidence == (
        "rank 3 on node a was reported first, but with what the failure of another worker looks "
        f"like: {RESET}"
    )


def test_culprit_that_is_reported_first_stops_at_once() -> None:
    """Its victims, a moment later, change nothing."""
    bench, a, b = pair()

    b.fail(KILLED)
    assert Phase.STOPPING is bench.job().phase
    a.fail(*(victim(rank) for rank in range(20)))

    verdict = the_verdict(bench)
    assert (("b", 20), "", 20) == (culprit(bench), verdict.evidence, verdict.collateral_count)
    assert ["signal 9 (SIGKILL)", "exit code 1"] == [group.key[0] for group in verdict.groups]
    assert [((20, 20),), ((0, 19),)] == [group.ranks for group in verdict.groups]
    assert [False, True] == [group.is_victim for group in verdict.groups]


def test_there_is_nobody_to_wait_for() -> None:
    """A worker alone, or the last one to fail, is not waited for."""
    alone = Bench(JobSpec())
    (a,) = alone.run_round("a")
    a.fail(victim())
    bench, a, b = pair()
    a.fail(*(victim(rank) for rank in range(20)))
    b.fail(*(victim(rank) for rank in range(20)))

    assert [Phase.STOPPING] * 2 == [alone.job().phase, bench.job().phase]
    assert ("", False) == (the_verdict(alone).evidence, the_verdict(alone).groups[0].is_victim)


def test_a_lost_node_ends_the_wait_and_explains_it() -> None:
    """Broken connections and then a lost node: the node is the cause, and nothing is charged."""
    bench, a, b = pair()
    a.fail(victim())
    b.goodbye()
    bench.obey()

    assert (VerdictCause.NODE_LEFT, "b", 0) == (
        the_verdict(bench).cause,
        the_verdict(bench).name,
        bench.job().restart_count,
    )


def test_finding_follows_while_the_round_stops() -> None:
    """A culprit that is reported after the stop corrects the finding at once, and is charged."""
    bench, a, b = pair(no_retry=(17,))
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
    """What is kept whole is what may be the culprit; victims make room."""
    bench, a, b = pair()
    a.fail(*(victim(rank) for rank in range(20)))
    b.fail(*(victim(rank) for rank in range(19)))
    assert ("a", 0) == culprit(bench)

    b.fail(worker_exit(signal=11, local_rank=19))
    bench.obey()

    verdict = the_verdict(bench)
    assert (("b", 39), 39) == (culprit(bench), verdict.collateral_count)
    assert list(range(FAILURES_MAX - 1)) == [failed.rank for failed in verdict.collateral]
    assert [39, 1] == [group.count for group in verdict.groups]
    assert (Consequence.RESTARTED, 1) == (consequence(bench.job()), bench.job().restart_count)


def test_first_victim_is_named_when_there_is_nobody_else() -> None:
    """With victims only the first to be reported is named, and the verdict says so."""
    bench, a, b = pair()

    b.fail(victim(1))
    a.fail(victim(2))
    bench.advance(CULPRIT_DUE_MS)
    bench.obey()

    verdict = the_verdict(bench)
    assert ("b", 21) == culprit(bench)
    assert verdict.evidence == (
        "it was reported first, but its error looks like the failure of another worker, and nobody "
        "reported a cause"
    )


@pytest.mark.parametrize(
    ("claim", "first", "second", "expected"),
    [
        ("two causes", worker_exit(said=NAN), KILLED, "a"),
        ("a silent end, then a cause", worker_exit(1), worker_exit(said=NAN), "b"),
        ("a silent end, then a crash", worker_exit(1), KILLED, "b"),
        ("a silent end, then another", worker_exit(1), worker_exit(3), "a"),
        ("a code of its own, then a cause", worker_exit(17), worker_exit(said=NAN), "a"),
        ("a stray TERM, then a cause", worker_exit(signal=15), worker_exit(said=NAN), "b"),
        ("a victim, then a silent end", victim(), worker_exit(1), "b"),
    ],
)
def test_who_is_named(claim: str, first: WorkerExit, second: WorkerExit, expected: str) -> None:
    """The order of arrival decides between equals; a cause outranks an end that says nothing."""
    bench, a, b = pair()

    a.fail(first)
    b.fail(second)
    bench.obey()

    verdict = the_verdict(bench)
    assert expected == verdict.name, claim
    assert (expected == "a") == (verdict.evidence == "")


def stopped(recorded_ms: int | None, signalled_ms: int | None, said: str = NAN) -> WorkerExit:
    """Return the end of a worker that the agent had signalled, with an error that it wrote down."""
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
    """A worker that had failed before it was signalled is a failure, whatever ended it then."""
    bench, a, b = pair()
    a.fail(victim(1))
    bench.advance(CULPRIT_DUE_MS)

    b.exit(exit)
    bench.obey()

    assert is_failure == exit.is_failure, claim
    assert (("b", 20) if is_failure else ("a", 1)) == culprit(bench)


def test_recorded_error_is_told_with_its_age() -> None:
    """The verdict says what was recorded and that it was before the stop."""
    bench, a, b = pair()
    a.fail(victim(1))
    bench.advance(CULPRIT_DUE_MS)

    b.exit(stopped(480, 30))

    verdict = the_verdict(bench)
    assert verdict.text.endswith(f"failed first: signal 15 (SIGTERM), 2.0 s after its start: {NAN}")
    assert verdict.evidence.endswith(
        "; it had written its error down 0.5 s before it was told to stop"
    )


def test_recorded_error_of_a_victim_is_collateral() -> None:
    """Having recorded it first does not make a broken connection a cause."""
    bench, a, b = pair()
    a.fail(worker_exit(said=NAN))

    b.exit(stopped(480, 30, said=RESET))
    bench.obey()

    assert (("a", 0), 1) == (culprit(bench), the_verdict(bench).collateral_count)
    assert Symptom.VICTIM is the_verdict(bench).collateral[0].symptom


def test_failure_during_a_growth_is_not_charged_and_not_told() -> None:
    """What fails while newcomers are taken in did not end the round."""
    bench = Bench(JobSpec(1, 2, max_restarts=1, settle_ms=0, grow_after_ms=0, last_call_ms=0))
    (a,) = bench.run_round("a")
    bench.join("b")
    bench.advance(1)
    assert isinstance(a.desired, DesiredStop)

    a.exit(stopped(480, 30))
    bench.obey()

    assert (0, None, 2) == (bench.job().restart_count, bench.job().verdict, len(bench.rounds()))


def test_kill_for_want_of_memory_has_a_name() -> None:
    """Where the kernel says so, the verdict does."""
    bench, a, _ = pair()

    a.fail(WorkerExit(0, 4_000, None, 9, ran_ms=100, oom_killed=True))

    assert "killed by the kernel for want of memory (OOM)" in the_verdict(bench).text
    assert "killed by the kernel for want of memory (OOM)" == the_verdict(bench).groups[0].key[0]
