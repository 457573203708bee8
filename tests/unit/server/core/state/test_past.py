"""What a job remembers of earlier runs, and of the nodes that are gone."""

from __future__ import annotations

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import HISTORY_MAX
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.reads.explain import AwaitedState
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, worker_exit

TWO = JobSpec(min_nodes=2, max_nodes=2, max_restarts=1, restart_backoff_ms=0, last_call_ms=0)


def test_next_run_keeps_what_the_last_one_was() -> None:
    """Its outcome, its verdict without output, its counts, its times and its rounds."""
    bench = Bench(JobSpec(max_restarts=1, restart_backoff_ms=0))
    bench.advance(1_000)
    (a,) = bench.run_round("a")
    for _ in range(2):
        bench.advance(500)
        a.fail(worker_exit(7, said="bad"))
        bench.obey()
    a.goodbye()
    closed_ms = bench.now_ms
    bench.advance(2_000)
    bench.run_round("b")

    job, (run,) = bench.job(), bench.job().runs
    assert (2, 1, Outcome.FAILED) == (job.run, run.run, run.outcome)
    assert (1, 1, 2) == (run.restart_count, run.max_restarts, run.round)
    assert (1_000, closed_ms) == (run.opened_ms, run.closed_ms)
    assert run.verdict is not None and "exit code 7" in run.verdict.text
    assert run.verdict.groups == ()
    assert [(1, 1), (1, 2)] == [(one.run, one.number) for one in job.history]
    assert [500, 500] == [one.ended_ms - one.began_ms for one in job.history]
    assert (3, 3) == (job.round_number, job.latest_round)


def test_run_without_a_round_has_none() -> None:
    """The number of a round before it is not that of the run."""
    bench = Bench(TWO)
    a, b = bench.run_round("a", "b")
    for agent in (a, b):
        agent.succeed()
        agent.goodbye()
    bench.join("c")

    assert (2, 1, 0) == (bench.job().run, bench.job().round_number, bench.job().latest_round)


def test_rounds_of_all_runs_are_bounded_together() -> None:
    """The latest stay."""
    bench = Bench(JobSpec())
    for number in range(HISTORY_MAX + 3):
        (agent,) = bench.run_round(f"n{number}")
        agent.succeed()
        agent.goodbye()

    history = bench.job().history
    assert list(range(4, HISTORY_MAX + 4)) == [one.number for one in history]
    assert [one.run for one in history] == [one.number for one in history]


@pytest.mark.parametrize(
    ("how", "state", "text"),
    [
        ("lost", AwaitedState.LOST, "b (lost 0 s ago)"),
        ("left", AwaitedState.LEFT, "b (left 0 s ago)"),
        ("drained", AwaitedState.LEFT, "b (drained, so it may not come back; left 0 s ago)"),
        ("cordoned", AwaitedState.CORDONED, "b (cordoned, so it may not come back; left 0 s ago)"),
    ],
)
def test_what_keeps_an_awaited_node_away(how: str, state: AwaitedState, text: str) -> None:
    """A node that an operator took out may not come back: someone else has to."""
    bench = Bench(TWO)
    _, b = bench.run_round("a", "b")
    if how == "cordoned":
        bench.take(inputs.Cordon(JobId(JOB), NodeName("b"), "bad memory"))
    if how == "drained":
        bench.take(inputs.DrainNode(JobId(JOB), NodeName("b"), 0, "maintenance"))
    if how == "lost":
        b.break_off()
        bench.advance(500)
    else:
        b.goodbye()
    bench.obey()
    waiting = bench.the_wait()

    assert text in waiting.text
    assert [("b", state)] == [(node.name, node.state) for node in waiting.awaited]


def test_node_that_leaves_after_the_end_has_finished() -> None:
    """One that is lost then was lost all the same."""
    bench = Bench(TWO)
    a, b = bench.run_round("a", "b")
    a.succeed()
    b.succeed()
    a.goodbye()
    b.break_off()
    bench.advance(500)

    assert [("a", RoundReason.NODE_LEFT, True), ("b", RoundReason.NODE_LOST, False)] == [
        (gone.name, gone.reason, gone.has_finished) for gone in bench.job().lost
    ]
