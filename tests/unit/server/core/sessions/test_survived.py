"""A worker that records an error and then ends with 0 by itself has survived the error."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rallypoint.server.core.model.desired import DesiredRun, DesiredStop
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import VerdictCause
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from rallypoint.server.core.rounds.rounds import EXIT_DUE_MS
from rallypoint.server.core.verdicts.folding import RANGES_MAX, Status, fold, unfold
from support.core.adoption import WINDOW_MS, orphans
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, worker_exit

NAN = "ValueError: loss is nan"


def recorded(local_rank: int = 0) -> WorkerExit:
    """Return the failure of a running worker that has just recorded its error."""
    error = ErrorRecord(NAN, "", 0)
    return WorkerExit(local_rank, 4_000 + local_rank, None, None, ran_ms=60_000, error=error)


def pair(durable: bool = False) -> tuple[Bench, FakeAgent, FakeAgent]:
    """Return a bench with a started round of two nodes with 2 workers each."""
    bench = Bench(JobSpec(2, 2, max_restarts=3, restart_backoff_ms=0), durable=durable)
    a, b = bench.run_round("a", "b", workers=2)
    return bench, a, b


def succeed(agent: FakeAgent, *local_ranks: int) -> None:
    for local_rank in local_ranks:
        agent.exit(worker_exit(0, local_rank=local_rank))
    agent.succeed()


@pytest.mark.parametrize("wait_ms", [0, EXIT_DUE_MS - 1])
def test_round_runs_on_and_succeeds(wait_ms: int) -> None:
    """However long the worker takes to end before the stop: nothing of the failure is left."""
    bench, a, b = pair()
    a.record(recorded())
    bench.advance(wait_ms)
    assert VerdictCause.WORKER_FAILED is bench.the_verdict().cause

    a.exit(worker_exit(0))

    round = bench.job().round
    assert round is not None and (Phase.RUNNING, None) == (bench.job().phase, bench.job().verdict)
    assert ((), 0, (), None) == (
        round.failures,
        round.failure_count,
        round.failure_groups,
        round.first_failure_ms,
    )
    assert (NodeState.STARTED, "verdict_corrected") == (a.known_node.state, bench.events()[-1])
    bench.advance(EXIT_DUE_MS)
    assert isinstance(b.desired, DesiredRun)
    succeed(a, 1)
    succeed(b, 0, 1)
    assert (Outcome.SUCCEEDED, None) == (bench.job().outcome, bench.job().verdict)
    bench.check_journal()


def test_stop_that_was_decided_remains() -> None:
    """A worker that ends with 0 while the stop is on its way was what stopped the round."""
    bench, a, b = pair()
    a.record(recorded())
    bench.advance(EXIT_DUE_MS)

    a.exit(worker_exit(0))

    assert isinstance(b.desired, DesiredStop)
    assert NodeState.FAILED is a.known_node.state
    assert "was reported first: error recorded, then exit code 0" in bench.the_verdict().text
    bench.obey()
    assert 1 == bench.job().counts.restart_count


def test_other_failures_remain() -> None:
    """The verdict names the one that has failed; the survivor is no part of it."""
    bench, a, b = pair()
    a.record(recorded(), recorded(1))
    bench.advance(100)
    b.record(recorded())
    assert 0 == bench.the_verdict().culprit.rank  # type: ignore[union-attr]

    a.exit(worker_exit(0), worker_exit(0, local_rank=1))

    verdict = bench.the_verdict()
    assert verdict.culprit is not None and (2, 0) == (
        verdict.culprit.rank,
        verdict.collateral_count,
    )
    assert [(2, 2)] == [span for group in verdict.groups for span in group.ranks]
    bench.advance(EXIT_DUE_MS)
    assert isinstance(a.desired, DesiredStop)


def test_node_with_another_failure_stays_failed() -> None:
    """One of two failed workers of a node has survived its error."""
    bench, a, _ = pair()
    a.record(recorded(), recorded(1))

    a.exit(worker_exit(0))

    assert (NodeState.FAILED, Phase.RUNNING) == (a.known_node.state, bench.job().phase)


def test_earlier_verdict_of_the_run_is_shown_again() -> None:
    """Readers see the latest round that failed."""
    bench, a, _ = pair()
    a.fail(worker_exit(3))
    bench.obey()
    first = bench.the_verdict()
    a.record(recorded())
    assert first.text != bench.the_verdict().text

    a.exit(worker_exit(0))

    assert first.text == bench.the_verdict().text


def test_survivor_of_a_coordinator_that_started_again() -> None:
    """The journal knows the failure; the Hello says that the worker has ended with 0."""
    bench, a, b = pair(durable=True)
    a.record(recorded())
    bench.restart()
    assert 1 == bench.job().round.failure_count  # type: ignore[union-attr]

    a.hello(held=a.held_round(NodeState.STARTED, [worker_exit(0)]))
    b.hello(held=b.held_round())

    assert (Phase.RUNNING, None) == (bench.job().phase, bench.job().verdict)
    bench.advance(EXIT_DUE_MS)
    assert isinstance(b.desired, DesiredRun)
    bench.check_journal()


def test_survivor_before_the_adoption() -> None:
    """An unknown round is adopted as it is by then, and not as one that could not start."""
    bench, agents = orphans()
    a, b, c = agents
    a.hello(held=a.held_round(NodeState.FAILED, [recorded()]))
    for agent in (b, c):
        agent.hello(held=agent.held_round())
    a.exit(worker_exit(0))
    bench.advance(WINDOW_MS)

    assert (Phase.RUNNING, None) == (bench.job().phase, bench.job().verdict)


def test_unfolded_failure_leaves_its_group() -> None:
    """Its rank and its count are gone, and so is a group without others."""
    status = Status()
    groups = fold((), rank=3, ended="x", status=status, error="bad", is_victim=False)
    more = fold(groups, rank=4, ended="x", status=status, error="bad", is_victim=False)

    assert groups == unfold(more, 4)
    assert () == unfold(groups, 3)


def test_failure_that_no_group_shows_cannot_be_unfolded() -> None:
    """Neither one beyond the limit, nor one whose removal would exceed it."""
    status = Status()
    groups = fold((), rank=0, ended="x", status=status, error="bad", is_victim=False)
    full = (replace(groups[0], ranks=tuple((n, n + 2) for n in range(0, 4 * RANGES_MAX, 4))),)

    assert unfold(groups, 9) is None
    assert unfold(full, 1) is None
