"""A job that an operator creates before its agents come."""

from __future__ import annotations

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import JobChanged
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.core.sessions import admission
from rallypoint.server.core.state.deadlines import DeadlineKind
from support.core.coordinator import Bench
from support.core.fake_agents import JOB

PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=1, join_timeout_ms=60_000)
JOBS_MAX = 12


def create(
    bench: Bench, spec: JobSpec = PAIR, job_id: str = JOB, request_id: str = ""
) -> RefusalKind | None:
    """Create a job; return why it was refused, or None."""
    refusal = bench.take(inputs.CreateJob(JobId(job_id), spec, request_id)).refusal
    return None if refusal is None else refusal.kind


def created(spec: JobSpec = PAIR) -> Bench:
    bench = Bench(spec)
    assert create(bench) is None
    return bench


def end(bench: Bench) -> None:
    """Let all agents succeed and leave."""
    for agent in tuple(bench.agents.values()):
        agent.succeed()
        agent.goodbye()


def test_created_job_waits_for_its_agents() -> None:
    """It is forming, says so, and runs as soon as they are there."""
    bench = created()
    job = bench.job()

    assert (job.run, job.phase, job.spec) == (1, Phase.FORMING, PAIR)
    wait = bench.the_wait()
    assert (wait.kind, wait.needed_nodes, wait.left_ms) == (WaitKind.NODES, 2, 60_000)
    assert wait.text.startswith("0 of 2 required nodes are ready; no agent has come yet")
    reasons = [one.reason for one in bench.effects if isinstance(one, JobChanged)]
    assert reasons == ["run_opened", "job_created"]
    bench.run_round("a", "b")
    assert (bench.job().run, bench.job().phase) == (1, Phase.RUNNING)
    bench.check_journal()


def test_agents_must_agree_with_it() -> None:
    """As with a first agent: also the first one."""
    bench = created()
    refusal = bench.agent("a", spec=JobSpec(min_nodes=2, max_nodes=2)).hello().refusal
    assert refusal is not None

    assert refusal.kind is RefusalKind.SPEC_MISMATCH
    assert [(field, ours) for field, ours, _ in refusal.differences] == [
        ("max_restarts", "1"),
        ("join_timeout", "60 s"),
    ]
    assert bench.join("b")


def test_created_job_does_not_wait_for_ever() -> None:
    """Without an agent it ends after the join timeout, and says why. It can be created again."""
    bench = created()
    bench.advance(PAIR.join_timeout_ms - 1)
    assert bench.job().phase is Phase.FORMING
    bench.advance(1)
    job = bench.job()

    assert (job.phase, job.outcome) == (Phase.CLOSED, Outcome.ABANDONED)
    verdict = bench.the_verdict()
    assert (verdict.cause, verdict.consequence) == (
        VerdictCause.TOO_FEW_NODES,
        Consequence.ABANDONED,
    )
    assert verdict.text == "no agent came within 60 s after the job was created"
    assert create(bench) is None
    assert bench.job().run == 2
    bench.check_journal()


def test_join_timeout_begins_again_with_the_first_agent() -> None:
    """It has as long as ever to find its peers."""
    bench = created()
    bench.advance(PAIR.join_timeout_ms - 1)
    (a,) = bench.join("a")
    bench.advance(PAIR.join_timeout_ms - 1)
    assert bench.job().phase is Phase.FORMING
    bench.advance(1)

    assert bench.job().outcome is Outcome.FAILED
    assert a.node is not None


def test_open_job_is_not_created() -> None:
    """The one that exists is left alone, whether an agent has come or not."""
    bench = created()
    assert create(bench, JobSpec()) is RefusalKind.JOB_EXISTS
    bench.run_round("a", "b")

    assert create(bench, JobSpec()) is RefusalKind.JOB_EXISTS
    assert bench.job().spec == PAIR


def test_next_run_is_created() -> None:
    """Once the agents of the one before know its outcome; round numbers grow on."""
    bench = Bench(PAIR)
    a, b = bench.run_round("a", "b")
    for agent in (a, b):
        agent.succeed()
    assert create(bench) is RefusalKind.PREVIOUS_RUN_ENDING
    for agent in (a, b):
        agent.goodbye()
    spec = JobSpec(min_nodes=1, max_nodes=1)
    assert create(bench, spec) is None

    assert (bench.job().run, bench.job().spec, bench.job().round_number) == (2, spec, 1)
    bench.run_round("c", spec=spec)
    assert bench.job().round_number == 2
    bench.check_journal()


def test_created_run_belongs_to_the_launch_of_its_first_agent() -> None:
    """So a late agent of that launch learns the outcome, and begins no further run."""
    bench = Bench(PAIR)
    assert create(bench) is None
    bench.run_round("a", "b", launch_id="launch")
    end(bench)
    (late,) = bench.join("c", launch_id="launch")

    assert bench.job().run == 1
    assert late.node is not None
    bench.check_journal()


def test_request_is_carried_out_once() -> None:
    """Also if the run has ended meanwhile, or the job was deleted."""
    bench = Bench(PAIR)
    assert create(bench, request_id="r") is None
    assert create(bench, request_id="r") is None
    bench.take(inputs.CancelJob(JobId(JOB), 0, "", "c"))
    assert create(bench, request_id="r") is None
    assert (bench.job().run, bench.job().phase) == (1, Phase.CLOSED)
    bench.take(inputs.DeleteJob(JobId(JOB)))
    assert create(bench, request_id="r") is None
    assert bench.state.jobs == {}
    assert create(bench, request_id="s") is None
    bench.take(inputs.CancelJob(JobId(JOB), 0, "", "c"))

    assert bench.job().phase is Phase.FORMING
    bench.check_journal()


def test_coordinator_that_looks_for_rounds_creates_nothing() -> None:
    """It does not know yet which jobs run."""
    bench = Bench(PAIR, window_ms=2_500)
    assert create(bench) is RefusalKind.NOT_READY
    bench.advance(2_500)

    assert create(bench) is None


@pytest.mark.parametrize("kind", [inputs.CancelJob, inputs.RestartJob])
def test_coordinator_that_looks_for_rounds_ends_nothing(kind: type) -> None:
    """What it knows of the job is not what its agents will show."""
    bench = Bench(PAIR, window_ms=2_500)
    bench.join("a")
    refusal = bench.take(kind(JobId(JOB), 0, "")).refusal

    assert refusal is not None and refusal.kind is RefusalKind.NOT_READY


def test_created_jobs_are_the_last_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has ended goes first; when all wait for agents, the oldest goes."""
    monkeypatch.setattr(admission, "JOBS_MAX", JOBS_MAX)
    bench = Bench(PAIR)
    for number in range(JOBS_MAX):
        assert create(bench, job_id=f"j{number}") is None
        bench.now_ms += 1
    bench.take(inputs.CancelJob(JobId("j7"), 0, ""))
    assert create(bench, job_id="new") is None
    assert JobId("j7") not in bench.state.jobs
    assert JobId("j0") in bench.state.jobs
    assert create(bench, job_id="newer") is None

    assert JobId("j0") not in bench.state.jobs
    assert len(bench.state.jobs) == JOBS_MAX


def test_cancelled_before_its_first_agent() -> None:
    """Nothing is left that would end it later, and the first agent begins another run."""
    bench = created()
    bench.take(inputs.CancelJob(JobId(JOB), 0, "typo"))
    assert bench.job().outcome is Outcome.CANCELLED
    assert bench.state.deadlines.get((DeadlineKind.ABANDON, JOB)) is None
    bench.join("a")

    assert (bench.job().run, bench.job().phase) == (2, Phase.FORMING)
    bench.check_journal()


def test_created_job_is_resized_before_its_agents_come() -> None:
    """They need not know: the operator's word counts."""
    bench = created()
    bench.take(inputs.UpdateJob(JobId(JOB), max_nodes=3, max_restarts=5))
    bench.join("a", "b", "c")
    bench.obey()

    assert bench.job().phase is Phase.RUNNING
    assert bench.job().spec.max_restarts == 5
