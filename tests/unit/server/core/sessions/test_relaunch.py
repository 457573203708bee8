"""A job that is started again with other flags, after all its agents were killed."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.step import Transition
from support.core.coordinator import Bench
from support.core.fake_agents import JOB


def kind_of(transition: Transition) -> RefusalKind | None:
    return None if transition.refusal is None else transition.refusal.kind


def test_relaunch_with_other_flags_opens_the_next_run() -> None:
    """When all agents were killed, their run ends for it a lease later; until then they may return.

    Agents of the old run do not come back to it.
    """
    bench = Bench(JobSpec(join_timeout_ms=60_000))
    (agent,) = bench.join("a")
    other = bench.agent("b", spec=replace(bench.spec, max_restarts=5))

    assert kind_of(other.hello()) is RefusalKind.SPEC_MISMATCH
    agent.break_off()
    assert kind_of(other.hello()) is RefusalKind.PREVIOUS_RUN_ENDING
    bench.advance(1_500)
    assert bench.state.nodes == {}
    assert kind_of(other.hello()) is RefusalKind.PREVIOUS_RUN_ENDING
    bench.advance(bench.state.lease_ms(bench.spec))

    assert other.hello().refusal is None
    job = bench.state.jobs[JobId(JOB)]
    assert (job.run, job.spec.max_restarts) == (2, 5)
    assert [run.outcome for run in job.runs] == [Outcome.ABANDONED]
    agent.run = 1
    assert kind_of(agent.hello()) is RefusalKind.OLD_RUN


def test_relaunch_waits_for_a_fence() -> None:
    """Workers of a lost node may still run: the next run begins when they are dead for certain."""
    bench = Bench(JobSpec(join_timeout_ms=120_000, fence_after_ms=30_000))
    (agent,) = bench.join("a")
    agent.start()
    other = bench.agent("b", spec=replace(bench.spec, max_restarts=5))
    agent.break_off()
    bench.advance(20_000)
    assert kind_of(other.hello()) is RefusalKind.PREVIOUS_RUN_ENDING
    bench.advance(20_000)

    assert other.hello().refusal is None
