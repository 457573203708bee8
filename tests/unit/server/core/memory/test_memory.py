"""What readers, workers and operators have seen stays true when the coordinator starts again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.memory import restore as restoring
from rallypoint.server.core.memory.replay import memory_of, replay, snapshot
from rallypoint.server.core.memory.restore import Restored, restore
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import EpochRaised, JobChanges, JobNoted
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.keyspace import Answer
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.model.verdict import VerdictCause
from rallypoint.server.core.rounds.settling import REMEMBERED_MS
from rallypoint.server.core.state import state
from support.core.barriers import TIMEOUT_MS, Meeting, rank
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, come_back, finished
from support.core.keys import Sharing

PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=1)


def running(spec: JobSpec = PAIR) -> Bench:
    """Return a durable coordinator with a round that runs on the nodes a and b."""
    bench = Bench(spec, durable=True)
    bench.advance(10_000)
    bench.run_round("a", "b")
    return bench


def restart(bench: Bench) -> None:
    """Let the coordinator start again, and all agents return."""
    bench.restart()
    for agent in bench.agents.values():
        come_back(agent)


def test_barrier_that_is_half_full_goes_on() -> None:
    """One arrived before the start, the other one after it; an attempt again counts once."""
    at = Meeting(running())
    at.arrive(rank(0), request_id="first", payload=b"0")

    restart(at.bench)
    assert at.arrive(rank(0), request_id="first", payload=b"0", epoch=1_000) is None
    assert [] == at.ends()
    assert at.arrive(rank(1), payload=b"1") is None

    assert [b"0", b"1"] == [arrival.payload for _, arrival in at.the_end().arrivals]


def test_barrier_that_was_released_answers_again() -> None:
    """A participant whose answer was lost with the coordinator gets it."""
    at = Meeting(running())
    for number in (0, 1):
        at.arrive(rank(number), request_id=f"r{number}")

    restart(at.bench)

    assert at.arrive(rank(0), request_id="r0", epoch=1_000) is None
    assert [] == at.arrived


def test_barrier_is_overdue_in_time() -> None:
    """Its deadline is where it was."""
    at = Meeting(running())
    at.arrive(rank(0))

    restart(at.bench)
    at.bench.advance(TIMEOUT_MS - 2)
    assert [] == at.ends()
    at.bench.advance(1)

    assert at.the_end().broken is not None


def test_keys_and_their_requests_go_on() -> None:
    """A request that is sent again counts once; a watch that knows the header loses nothing."""
    at = Sharing(running())
    answer = at.put("a", b"1", request_id="r")
    at.add("n", 5)
    space = at.space.copy()
    since = at.bench.job().since_epoch

    restart(at.bench)
    assert space == at.space
    known = {"is_repeated": True, "known_epoch": since, "known_revision": space.revision}
    assert answer == at.put("a", b"1", request_id="r", **known)
    assert isinstance(at.put("b", b"2", request_id="s", **known), Answer)

    assert 12 == at.add("n", 7)
    assert since == at.bench.job().since_epoch
    assert at.space.weight == at.bench.state.holding.keys


def test_events_go_on_without_a_gap() -> None:
    """Numbers only grow, and a reader that continues has lost nothing."""
    bench = running()
    before = [event.sequence for event in bench.state.events.all]

    restart(bench)
    bench.take(inputs.CancelJob(JobId(JOB), 0, ""))

    log = bench.state.events
    after = [event.sequence for event in log.all]
    assert before == after[: len(before)] and sorted(set(after)) == after
    assert log.lost(None) < before[0] and log.lost(JobId(JOB)) < before[0]
    assert log.all[-1].epoch == bench.state.epoch


def test_revisions_only_grow_and_deletions_are_known() -> None:
    """A reader who knows an earlier revision learns of every job, and of every deletion."""
    bench = running()
    bench.take(inputs.CreateJob(JobId("other"), PAIR, "c"))
    bench.take(inputs.CancelJob(JobId("other"), 0, ""))
    seen = bench.state.revision
    bench.take(inputs.DeleteJob(JobId("other"), 0, "d"))

    restart(bench)

    assert bench.state.revision > seen
    assert bench.state.compacted_revision <= seen
    assert {JobId(JOB)} == {job_id for job_id, _ in bench.state.revisions.changed_after(seen)}
    assert [JobId("other")] == [one for one, _ in bench.state.revisions.deleted_after(seen)]


def test_deletion_that_is_not_remembered_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when jobs that were deleted later exist again."""
    for module in (state, restoring):
        monkeypatch.setattr(module, "FORGOTTEN_MAX", 2)
    bench = running()
    jobs = [JobId(f"j{number}") for number in range(3)]
    for job_id in jobs:
        bench.take(inputs.CreateJob(job_id, PAIR))
        bench.take(inputs.CancelJob(job_id, 0, ""))
    seen = bench.state.revision
    for job_id in jobs:
        bench.take(inputs.DeleteJob(job_id))
    bench.take(inputs.CreateJob(jobs[2], PAIR))

    restart(bench)

    assert bench.state.compacted_revision > seen


def test_epoch_of_a_stranger_is_a_gap() -> None:
    """Only a start from the own journal has none."""
    bench = running()
    seen = bench.state.revision
    restart(bench)
    (agent,) = bench.join("x", spec=replace(PAIR), job_id="later")
    agent.epoch = bench.state.epoch + 50
    agent.coordinator_id = "stranger"
    agent.hello(is_proven=True)

    restart(bench)

    assert bench.state.compacted_revision > seen
    assert bench.state.since_epoch == agent.epoch - 1
    assert bench.state.events.lost(None) > bench.state.events.all[0].sequence


def test_requests_are_answered_as_before() -> None:
    """With the same id they are done once, also for a job that is gone."""
    bench = running()
    create = inputs.CreateJob(JobId("other"), PAIR, "c")
    update = inputs.UpdateJob(JobId(JOB), max_restarts=7, request_id="u")
    cancel = inputs.CancelJob(JobId("other"), 0, "", "k")
    delete = inputs.DeleteJob(JobId("other"), 0, "d")
    for request in (create, update, cancel, delete):
        assert bench.take(request).refusal is None

    restart(bench)
    for request in (create, update, delete):
        assert bench.take(request).refusal is None
    assert JobId("other") not in bench.state.jobs
    assert 7 == bench.job().spec.max_restarts
    refusal = bench.take(inputs.CreateJob(JobId("other"), PAIR, "d")).refusal
    assert refusal is not None and RefusalKind.REQUEST_ID_REUSED is refusal.kind


def test_agents_need_not_agree_with_what_an_operator_changed() -> None:
    """The changed fields are known, and an update of an older revision is refused."""
    bench = running(replace(PAIR, max_nodes=3))
    bench.take(inputs.UpdateJob(JobId(JOB), max_restarts=7))
    revision = bench.job().spec_revision

    restart(bench)
    bench.join("c")
    late = inputs.UpdateJob(JobId(JOB), max_restarts=8, revision=revision - 1)

    refusal = bench.take(late).refusal
    assert refusal is not None and RefusalKind.SPEC_CHANGED is refusal.kind


def test_history_and_runs_go_on() -> None:
    """Ended rounds and runs of before are there, and the next ones follow."""
    bench = running()
    a, b = bench.agents.values()
    a.fail()
    bench.obey()
    a.fail()
    bench.obey()
    for agent in (a, b):
        agent.goodbye()
    bench.agents.clear()

    bench.restart()
    assert [1, 2] == [one.number for one in bench.job().history]
    bench.run_round("a", "b")
    bench.restart()

    assert (2, 3) == (bench.job().run, bench.job().round_number)
    assert [(1, Outcome.FAILED)] == [(run.run, run.outcome) for run in bench.job().runs]
    assert [RoundReason.WORKER_FAILED] * 2 == [one.ended for one in bench.job().history]


def test_created_job_waits_for_its_agents() -> None:
    """The time for its first agent continues, and is no shorter than agents need to come."""
    bench = Bench(replace(PAIR, join_timeout_ms=60_000), durable=True)
    bench.advance(10_000)
    bench.take(inputs.CreateJob(JobId(JOB), bench.spec, "c"))

    bench.advance(49_000)
    bench.restart()
    assert Phase.FORMING is bench.job().phase
    bench.advance(10_998)
    assert Phase.FORMING is bench.job().phase
    bench.advance(1)
    assert Outcome.ABANDONED is bench.job().outcome
    assert "no agent came" in bench.the_verdict().text


def test_long_absence_leaves_time_to_come() -> None:
    """A wait that would be over gives agents the time that they need to find the coordinator."""
    bench = Bench(replace(PAIR, join_timeout_ms=20_000), durable=True)
    bench.advance(10_000)
    (a,) = bench.join("a")
    bench.take(inputs.CreateJob(JobId("created"), bench.spec, "c"))

    bench.restart()
    assert Phase.FORMING is bench.job("created").phase
    come_back(a)
    bench.advance(1_000)
    assert Phase.FORMING is bench.job().phase
    bench.join("b")

    assert Phase.RUNNING is bench.job().phase


def test_ended_job_is_forgotten_in_time() -> None:
    """A day after its end, of the time in which a coordinator was there."""
    bench = running()
    bench.take(inputs.CancelJob(JobId(JOB), 0, ""))
    for agent in tuple(bench.agents.values()):
        agent.goodbye()

    bench.restart()
    bench.advance(REMEMBERED_MS - 2)
    assert [JOB] == list(bench.state.jobs)
    bench.advance(1)

    assert {} == bench.state.jobs
    assert 1 == bench.state.gone[JobId(JOB)].ended_run


def test_start_in_the_first_window_keeps_it_open() -> None:
    """Rounds that a coordinator in memory had sealed are adopted, although this one has died."""
    before = Bench(PAIR, coordinator_id="before")
    agents = before.run_round("a", "b")
    bench = Bench(PAIR, window_ms=2_500, durable=True, epoch=before.state.epoch + 1)
    for agent in agents:
        bench.adopt_agent(agent)
    agents[0].hello(held=agents[0].held_round())

    bench.restart()
    for agent in agents:
        assert agent.hello(held=agent.held_round()).refusal is None
    bench.advance(2_500)

    assert (Phase.RUNNING, 1) == (bench.job().phase, bench.job().round_number)
    assert "round_adopted" in bench.events()


def test_many_starts_in_a_row_change_nothing() -> None:
    """The memory is the same after each, but for the epoch: nodes are missed since the first."""
    bench = running()
    restart(bench)
    before = memory_of(bench.state)

    bench.restart()
    missed = memory_of(bench.state)
    for _ in range(4):
        bench.restart()
    after = memory_of(bench.state)

    assert before.jobs == after.jobs and missed.nodes == after.nodes
    assert before.events == after.events and before.epoch + 5 == after.epoch
    assert replay(snapshot(after)) == after


def load(bench: Bench, *tampered: object) -> tuple[Restored, list[Exception]]:
    """Return what a start gives after records that do not fit, and the errors of the jobs."""
    errors: list[Exception] = []

    def explain(_: JobId, error: Exception) -> str:
        errors.append(error)
        return "incident 1"

    memory = replay((*bench.records, *tampered))  # type: ignore[arg-type]
    restored = restore(
        memory,
        coordinator_id="c1",
        epoch=memory.epoch + 1,
        durable=True,
        timing=Timing(),
        now_ms=bench.now_ms,
        explain=explain,
    )
    again = replay((*bench.records, *tampered, *restored.records))  # type: ignore[arg-type]
    again.broken.clear()
    assert memory_of(restored.state) == again
    return restored, errors


@pytest.mark.parametrize("kind", ["record", "fact"])
def test_job_that_cannot_be_restored_fails_alone(kind: str) -> None:
    """It has a report, its agents get the outcome, and the other job continues."""
    bench = running()
    good = tuple(bench.agents)
    bench.run_round("c", "d", job_id="bad")
    bad = JobId("bad")
    noted = next(r for r in bench.records if isinstance(r, JobNoted) and r.job_id == bad)
    changes = JobChanges({"round_number": 99})
    if kind == "record":
        changes = JobChanges(cleared=("no such field",))
    tampered = replace(noted, changes=changes)

    restored, errors = load(bench, tampered)

    assert 1 == len(errors)
    job = restored.state.jobs[bad]
    assert (Phase.CLOSED, Outcome.FAILED) == (job.phase, job.outcome)
    assert job.verdict is not None and VerdictCause.INTERNAL is job.verdict.cause
    assert "incident 1" in job.verdict.text
    assert Phase.RUNNING is restored.state.jobs[JobId(JOB)].phase
    assert isinstance(restored.records[0], EpochRaised) and restored.records[0].resumed
    bench.state = restored.state
    bench.records += [tampered, *restored.records]
    bench.restart()
    for session, agent in bench.agents.items():
        if session not in good:
            come_back(agent)
            assert Outcome.FAILED is finished(agent).outcome


def test_record_of_an_unknown_job_costs_nothing() -> None:
    """There is nothing to lose, and nothing is invented."""
    bench = running()

    restored, errors = load(bench, JobNoted(JobId("x"), JobChanges({"run": 1})))

    assert [] == errors
    assert {JobId(JOB)} == restored.state.jobs.keys()
