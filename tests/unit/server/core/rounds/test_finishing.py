"""How a run ends, how its nodes learn the outcome, and what comes after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.desired import DesiredRun
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import VerdictCause
from rallypoint.server.core.sessions import admission
from rallypoint.server.core.state.deadlines import DeadlineKind
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, finished, stop_reason, worker_exit
from support.core.health import lose
from support.core.rounds import growing

DAY_MS = 86_400_000
PAIR = JobSpec(min_nodes=2, max_nodes=2)


def pair(spec: JobSpec = PAIR, **facts: object) -> tuple[Bench, FakeAgent, FakeAgent]:
    bench = Bench(spec)
    a, b = bench.run_round("a", "b", **facts)
    return bench, a, b


def test_run_succeeds_when_everybody_has() -> None:
    """The last node's success ends the run; members and spares get the outcome."""
    bench, a, b = pair()
    (spare,) = bench.join("z")
    a.succeed()
    assert (Phase.RUNNING, None) == (bench.job().phase, bench.job().outcome)

    b.succeed()

    assert [Outcome.SUCCEEDED] * 3 == [finished(agent).outcome for agent in (a, b, spare)]
    assert RoundReason.SUCCEEDED is bench.job().history[-1].ended


def test_exits_with_0_are_not_yet_a_success() -> None:
    """Succeeded counts, not the exits: only the agent knows the order of exits and signals."""
    bench, a, b = pair()

    a.exit()
    b.exit()

    assert Phase.RUNNING is bench.job().phase


def test_early_finisher_waits_without_limit() -> None:
    """A node that has finished waits for the others as long as they need."""
    bench, a, b = pair()
    a.succeed()
    bench.advance(2 * 3_600_000)
    assert isinstance(a.desired, DesiredRun)

    b.succeed()

    assert Outcome.SUCCEEDED is finished(a).outcome


def leave(bench: Bench, agent: FakeAgent) -> None:
    agent.leave("draining")
    agent.goodbye()


def block(bench: Bench, agent: FakeAgent) -> None:
    agent.block()


def be_lost_clean(bench: Bench, agent: FakeAgent) -> None:
    agent.ready()
    lose(bench, agent)


def leave_clean(bench: Bench, agent: FakeAgent) -> None:
    agent.ready()
    agent.goodbye()


@pytest.mark.parametrize(
    ("begin", "go"),
    [
        pytest.param(pair, lose, id="lost while the round runs"),
        pytest.param(pair, leave, id="left while the round runs"),
        pytest.param(growing, block, id="processes survive the stop of a growth"),
        pytest.param(growing, be_lost_clean, id="lost once it is clean in a growth"),
        pytest.param(growing, leave_clean, id="left once it is clean in a growth"),
    ],
)
def test_node_keeps_its_success(
    begin: Callable[[], Sequence[Any]], go: Callable[[Bench, FakeAgent], None]
) -> None:
    """Whatever becomes of the node: it is not missed, no round follows, and the run succeeds."""
    bench, a, b, *_ = begin()
    a.succeed()
    go(bench, a)
    assert bench.job().phase in (Phase.RUNNING, Phase.STOPPING)

    b.succeed()

    assert (Outcome.SUCCEEDED, 1) == (finished(b).outcome, len(bench.rounds()))


def test_node_lost_before_its_success_is_missed() -> None:
    """A node that is lost when only some of its workers have ended with 0 has not succeeded."""
    bench, a, b = pair()
    a.exit()
    a.break_off()
    bench.advance(500)

    assert RoundReason.NODE_LOST is stop_reason(b)


def test_failure_after_a_success_restarts_everybody() -> None:
    """A node that had succeeded takes part again when another one fails."""
    bench, a, b = pair(JobSpec(min_nodes=2, max_nodes=2, max_restarts=1))
    a.succeed()
    b.fail()

    bench.obey()

    assert [0, 1] == [a.group_rank, b.group_rank]


@pytest.mark.parametrize("order", ["aAbB", "abAB"])
def test_success_during_a_growth_stop(order: str) -> None:
    """A run succeeds when every member succeeded before its stop, in any order of the reports.

    Small letters are a node's success, capital ones its Ready.
    """
    bench, a, b, c = growing()
    actions = {"a": a.succeed, "b": b.succeed, "A": a.ready, "B": b.ready}

    for letter in order:
        actions[letter]()

    assert (Outcome.SUCCEEDED, 1) == (finished(c).outcome, len(bench.rounds()))


def test_success_of_some_during_a_growth_stop() -> None:
    """When one member was stopped before it succeeded, the round grows."""
    bench, a, b, _ = growing()
    a.succeed()
    a.ready()

    b.ready()

    assert (["a", "b", "c"], None) == (bench.order(), bench.job().outcome)


def test_success_during_a_failure_stop_is_none() -> None:
    """Nodes that succeed while a failure is being stopped do not undo the failure."""
    bench, a, b = pair(JobSpec(min_nodes=2, max_nodes=2, max_restarts=1), workers=2)
    b.fail(worker_exit(1, local_rank=1))

    a.succeed()
    b.succeed()
    bench.obey()

    assert (1, None) == (bench.job().counts.restart_count, bench.job().outcome)


def test_node_that_was_away_learns_the_outcome() -> None:
    """A node that was away when the run ended gets the outcome when it comes back."""
    _, a, b = pair()
    a.succeed()
    held = a.held_round()
    a.break_off()
    b.succeed()

    a.hello(held=held)

    assert Outcome.SUCCEEDED is finished(a).outcome


def test_node_of_the_ended_run_learns_the_outcome() -> None:
    """A node that was lost gets the outcome of its run when it comes back."""
    bench, a, b = pair(JobSpec(min_nodes=1, max_nodes=2))
    a.break_off()
    bench.advance(500)
    bench.obey()
    b.succeed()
    b.goodbye()

    a.hello(held=a.held_round())

    assert Outcome.SUCCEEDED is finished(a).outcome


def test_node_of_the_ended_run_is_no_stranger() -> None:
    """A node of the ended run gets the outcome also while others have yet to leave."""
    bench, a, b = pair(JobSpec(min_nodes=1, max_nodes=2))
    a.break_off()
    bench.advance(500)
    bench.obey()
    b.succeed()
    assert b.node is not None

    a.hello(held=a.held_round())

    assert Outcome.SUCCEEDED is finished(a).outcome


def test_next_run_opens_when_the_ended_one_was_told() -> None:
    """A fresh agent is refused while a node of the ended run is there, and opens run 2 then."""
    bench, a, b = pair()
    a.succeed()
    b.succeed()
    a.goodbye()
    fresh = bench.agent("c")
    refused = fresh.hello()
    assert refused.refusal is not None
    assert RefusalKind.PREVIOUS_RUN_ENDING is refused.refusal.kind

    b.goodbye()
    assert fresh.hello().refusal is None

    job = bench.job()
    assert (2, Phase.FORMING, None, 0) == (
        job.run,
        job.phase,
        job.outcome,
        job.counts.restart_count,
    )
    assert 2 == fresh.run


def test_agent_of_an_earlier_run_is_refused() -> None:
    """Once run 2 is open an agent that takes part in run 1 is refused."""
    bench, a, b = pair()
    a.break_off()
    bench.advance(500)
    b.goodbye()
    bench.obey()
    bench.join("c")
    assert 2 == bench.job().run

    refused = a.hello(held=a.held_round())

    assert refused.refusal is not None
    assert (RefusalKind.OLD_RUN, (("what", "run"), ("expected", 2), ("actual", 1))) == (
        refused.refusal.kind,
        refused.refusal.facts,
    )


def end_launch(launch_id: str) -> Bench:
    """Return a bench whose run, of that launch, succeeded; every node got the outcome."""
    bench, a, b = pair(launch_id=launch_id)
    for agent in (a, b):
        agent.succeed()
    for agent in (a, b):
        agent.goodbye()
    return bench


def test_launch_gets_the_outcome_for_a_day() -> None:
    """An agent that the same launch starts again gets the ended run's outcome, not a new run."""
    bench = end_launch("slurm.7.0")
    bench.advance(DAY_MS - 1)

    (again,) = bench.join("a", launch_id="slurm.7.0", spec=JobSpec(max_nodes=9))

    assert (Outcome.SUCCEEDED, 1) == (finished(again).outcome, bench.job().run)


@pytest.mark.parametrize("launch_id", ["slurm.8.0", ""])
def test_another_launch_opens_a_run(launch_id: str) -> None:
    """Another launch, and an agent without one, opens the next run."""
    bench = end_launch("slurm.7.0")

    bench.join("a", launch_id=launch_id)

    assert (2, Phase.FORMING) == (bench.job().run, bench.job().phase)


def test_ended_run_is_forgotten_after_a_day() -> None:
    """A day after its end a run is dropped, and its launch id means nothing any more."""
    bench = end_launch("slurm.7.0")

    bench.advance(DAY_MS)

    assert {} == bench.state.jobs
    (again,) = bench.join("a", launch_id="slurm.7.0")
    assert Phase.FORMING is bench.job(again.identity.job_id).phase


def test_ended_run_is_kept_while_a_node_is_there() -> None:
    """A run is forgotten a day after its last node left, not before."""
    bench, a, b = pair()
    a.succeed()
    b.succeed()
    a.goodbye()
    bench.state.deadlines.set((DeadlineKind.FORGET, "job"), bench.now_ms + 1)
    bench.advance(1)
    assert Phase.CLOSED is bench.job().phase
    b.goodbye()

    bench.advance(DAY_MS)

    assert {} == bench.state.jobs


def test_last_goodbye_abandons_the_run() -> None:
    """When the last node says Goodbye the run is ABANDONED at once."""
    bench, a, b = pair()
    a.goodbye()
    assert bench.job().outcome is None
    bench.obey()

    b.goodbye()

    assert (Phase.CLOSED, Outcome.ABANDONED) == (bench.job().phase, bench.job().outcome)


def test_lost_nodes_are_waited_for() -> None:
    """When the last node was lost the run is ABANDONED after the join timeout, not before."""
    bench, a, b = pair()
    a.break_off()
    b.break_off()
    bench.advance(500)

    bench.advance(PAIR.join_timeout_ms - 1)
    assert (Phase.FORMING, None) == (bench.job().phase, bench.job().outcome)

    bench.advance(1)
    assert Outcome.ABANDONED is bench.job().outcome


def test_deserted_run_goes_on_when_somebody_comes() -> None:
    """A node that comes in time keeps an empty run alive, with its counts."""
    bench, a, b = pair(JobSpec(min_nodes=1, max_nodes=2, max_restarts=2))
    a.fail()
    bench.obey()
    a.break_off()
    b.break_off()
    bench.advance(500)
    bench.advance(bench.spec.join_timeout_ms - 1)

    bench.join("c")
    bench.advance(1)

    assert (1, 1, None) == (bench.job().run, bench.job().counts.restart_count, bench.job().outcome)
    assert ["c"] == bench.order()


def test_broken_invariant_ends_only_its_job() -> None:
    """A job with a broken invariant fails with a report; the others continue."""
    bench, a, _ = pair()
    (other,) = bench.run_round("a", job_id="other", spec=JobSpec())

    bench.take(inputs.JobBroken(a.identity.job_id, "the tally is off"))

    verdict = finished(a).verdict
    assert verdict is not None
    assert (Outcome.FAILED, VerdictCause.INTERNAL) == (finished(a).outcome, verdict.cause)
    assert "the tally is off" in verdict.text
    assert isinstance(other.desired, DesiredRun)


def test_oldest_ended_job_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of jobs the one that ended first is dropped, and a living one never."""
    monkeypatch.setattr(admission, "JOBS_MAX", 2)
    bench = Bench(JobSpec())
    for job_id in ("first", "second"):
        (agent,) = bench.join("a", job_id=job_id)
        agent.goodbye()
        bench.advance(10)

    bench.join("a", job_id="third")
    assert ["second", "third"] == sorted(bench.state.jobs)

    bench.join("a", job_id="fourth")
    refused = bench.agent("a", job_id="fifth").hello()

    assert ["fourth", "third"] == sorted(bench.state.jobs)
    assert refused.refusal is not None
    assert RefusalKind.LIMIT_REACHED is refused.refusal.kind
