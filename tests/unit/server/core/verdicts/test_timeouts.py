"""A collective that timed out: the verdict names the rank that did not come, if evidence does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Hang, Round, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.server.core.rounds.rounds import CULPRIT_DUE_MS, TIMEOUT_DUE_MS
from rallypoint.server.core.verdicts.timeouts import list_timed_out
from support.core.coordinator import Bench, consequence
from support.core.fake_agents import JOB, FakeAgent, worker_exit

BUFFER = "[/pytorch/gloo/transport/tcp/unbound_buffer.cc:78]"
LATE = f"RuntimeError: {BUFFER} Timed out waiting 2000ms for recv operation to complete"
GONE = "ConnectionResetError: [Errno 104] Connection reset by peer"
NAN = "ValueError: loss is nan"
TEXT = "rank 3 did not come to the collective that timed out for 3 ranks; it is in train.py:7 load"

Trio = tuple[Bench, FakeAgent, FakeAgent]


def end(text: str, local_rank: int = 0) -> WorkerExit:
    """Return how a worker ended by an uncaught error."""
    return worker_exit(local_rank=local_rank, said=text)


def running() -> Trio:
    """Return a bench with a round of two nodes with two workers each."""
    bench = Bench(JobSpec(2, 2, max_restarts=3))
    a, b = bench.run_round("a", "b", workers=2)
    bench.advance(10_000)
    return bench, a, b


def timed_out() -> Trio:
    """Return it once a collective has timed out for ranks 0 to 2, and the evidence is awaited."""
    bench, a, b = running()
    a.fail(end(LATE), end(LATE, 1))
    b.fail(end(GONE))
    bench.advance(CULPRIT_DUE_MS)
    assert round_of(bench).hang is not None
    return bench, a, b


def round_of(bench: Bench) -> Round:
    round = bench.job().round
    assert round is not None
    return round


def examine(bench: Bench, rank: int | None = 3, text: str = TEXT) -> None:
    """Let the evidence come."""
    assert bench.take(inputs.Examined(JobId(JOB), 1, rank, text)).refusal is None


def test_evidence_is_asked_for_once_the_victims_have_ended() -> None:
    """Until then a culprit may show up by itself; the round runs until the evidence is there."""
    bench, a, _ = running()
    a.fail(end(LATE), end(LATE, 1))
    first_ms = bench.now_ms
    bench.advance(CULPRIT_DUE_MS - 1)
    assert round_of(bench).hang is None

    bench.advance(1)

    assert round_of(bench).hang == Hang(first_ms, first_ms)
    assert bench.job().phase is Phase.RUNNING
    assert list_timed_out(round_of(bench)) == {0, 1}
    bench.advance(TIMEOUT_DUE_MS - CULPRIT_DUE_MS - 1)
    assert bench.job().phase is Phase.RUNNING


def test_verdict_names_the_rank_that_did_not_come() -> None:
    """The evidence ends the wait. It is charged as a failure is."""
    bench, a, b = timed_out()
    examine(bench)

    assert bench.job().phase is Phase.STOPPING
    verdict = bench.the_verdict()
    text = f"a collective timed out: on node b, {TEXT}"
    assert (verdict.cause, verdict.name, verdict.text) == (VerdictCause.HUNG, "b", text)
    assert [failed.rank for failed in verdict.collateral] == [0, 1, 2]
    assert (verdict.culprit, verdict.collateral_count) == (None, 3)
    assert verdict.groups == round_of(bench).failure_groups
    assert round_of(bench).stop_reason is RoundReason.WORKER_FAILED

    b.fail(worker_exit(local_rank=1, signal=15, prompted=True))
    a.ready()
    b.ready()
    assert consequence(bench.job()) is Consequence.RESTARTED
    assert bench.job().counts.restart_count == 1
    assert bench.the_verdict().cause is VerdictCause.HUNG


@pytest.mark.parametrize("is_examined", [False, True])
def test_operator_may_restart_meanwhile(is_examined: bool) -> None:
    """The round ends for that, and keeps no suspicion."""
    bench, a, b = timed_out()
    if is_examined:
        bench.advance(TIMEOUT_DUE_MS - CULPRIT_DUE_MS - 1)
    bench.take(inputs.RestartJob(JobId(JOB), 0, "by hand"))
    assert (round_of(bench).stop_reason, round_of(bench).hang) == (
        RoundReason.RESTART_REQUESTED,
        None,
    )
    for agent in (a, b):
        agent.ready()

    assert bench.job().phase is not Phase.CLOSED


def wait(bench: Bench, b: FakeAgent) -> None:
    bench.advance(TIMEOUT_DUE_MS - CULPRIT_DUE_MS)


def find_none(bench: Bench, b: FakeAgent) -> None:
    examine(bench, None, "no rank is set apart")


def name_a_victim(bench: Bench, b: FakeAgent) -> None:
    examine(bench, 1)


def name_no_rank_of_the_round(bench: Bench, b: FakeAgent) -> None:
    examine(bench, 17)


def time_out_too(bench: Bench, b: FakeAgent) -> None:
    b.fail(end(LATE, 1))
    examine(bench)


@pytest.mark.parametrize(
    "happen", [wait, find_none, name_a_victim, name_no_rank_of_the_round, time_out_too]
)
def test_without_a_name_the_first_victim_is_named(
    happen: Callable[[Bench, FakeAgent], None],
) -> None:
    """As it was before there was evidence; and the round does not wait longer."""
    bench, _, b = timed_out()
    happen(bench, b)

    assert bench.job().phase is Phase.STOPPING
    verdict = bench.the_verdict()
    assert (verdict.cause, verdict.name) == (VerdictCause.WORKER_FAILED, "a")
    assert verdict.culprit is not None and verdict.culprit.rank == 0


def test_rank_with_its_own_cause_is_the_culprit() -> None:
    """Whatever the evidence says, before or after it."""
    bench, _, b = timed_out()
    b.fail(end(NAN, 1))
    assert bench.job().phase is Phase.STOPPING
    examine(bench)
    bench_later, _, b_later = timed_out()
    examine(bench_later)
    b_later.fail(end(NAN, 1))

    for one in (bench, bench_later):
        verdict = one.the_verdict()
        assert (verdict.cause, verdict.name) == (VerdictCause.WORKER_FAILED, "b")


@pytest.mark.parametrize(
    ("exits", "is_asked"),
    [
        pytest.param((end(GONE), end(LATE, 1)), True, id="one of the victims timed out"),
        pytest.param((end(GONE), end(GONE, 1)), False, id="a peer is gone"),
        pytest.param((end(LATE), end(NAN, 1)), False, id="one has its own cause"),
        pytest.param((end(LATE), worker_exit(17, local_rank=1)), False, id="one may have"),
    ],
)
def test_only_victims_of_a_timeout_need_evidence(
    exits: tuple[WorkerExit, ...], is_asked: bool
) -> None:
    """Any other failure stops the round as early as before."""
    bench, a, _ = running()
    a.fail(*exits)
    bench.advance(CULPRIT_DUE_MS)

    assert (round_of(bench).hang is not None) is is_asked
    assert (bench.job().phase is Phase.RUNNING) is is_asked
    assert bool(list_timed_out(round_of(bench))) is is_asked


def test_round_without_living_workers_needs_no_evidence() -> None:
    """All have failed: there is none to look at."""
    bench, a, b = running()
    a.fail(end(LATE), end(LATE, 1))
    b.fail(end(LATE), end(LATE, 1))

    assert bench.job().phase is Phase.STOPPING
    assert round_of(bench).hang is None


def test_earlier_suspicion_has_the_evidence() -> None:
    """The round was suspected and examined before its collective timed out: it stops at once."""
    bench, a, b = running()
    a.stand_still(bench.spec.hang_after_ms)
    b.stand_still(bench.spec.hang_after_ms)
    examine(bench)
    a.fail(end(LATE), end(LATE, 1))
    bench.advance(CULPRIT_DUE_MS)

    assert bench.job().phase is Phase.STOPPING
    verdict = bench.the_verdict()
    assert (verdict.cause, verdict.name) == (VerdictCause.HUNG, "b")


def test_late_step_of_a_victim_does_not_end_the_wait() -> None:
    """A worker may have reported a step shortly before it entered the collective."""
    bench, *_ = timed_out()
    claim = inputs.Claim(JobId(JOB), 1, 1, "token", is_signed=True)
    assert bench.take(inputs.Progressed(claim, 7, 1_000)).refusal is None
    examine(bench)

    assert bench.the_verdict().cause is VerdictCause.HUNG


def test_coordinator_that_starts_again_waits_for_the_evidence() -> None:
    """The question is part of its journal."""
    bench, *_ = timed_out()
    before = round_of(bench).hang
    bench.restart()

    assert round_of(bench).hang == before
    assert bench.job().phase is Phase.RUNNING
