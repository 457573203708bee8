"""When a change has come true, is not yet true, or cannot come true any more."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from rallypoint.cli.operator.changes.goals import (
    Goal,
    NodesLeave,
    RoundFits,
    RoundStarts,
    RunEnds,
    Standing,
)
from rallypoint.v1 import job_pb2, node_pb2, round_pb2, verdict_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2

PENDING, REACHED, MISSED = Standing.PENDING, Standing.REACHED, Standing.MISSED
FORMING, RUNNING = job_pb2.JOB_PHASE_FORMING, job_pb2.JOB_PHASE_RUNNING
STOPPING, CLOSED = job_pb2.JOB_PHASE_STOPPING, job_pb2.JOB_PHASE_CLOSED
NOW = Duration(seconds=1)


def round_of(number: int, nodes: int = 2, *, is_started: bool = True) -> round_pb2.Round:
    header = round_pb2.RoundHeader(number=number, group_world_size=nodes, world_size=8 * nodes)
    return round_pb2.Round(header=header, started_after=NOW if is_started else None)


def job(phase: job_pb2.JobPhase.ValueType = RUNNING, **fields: Any) -> job_pb2.Job:
    known = {"job_id": "j", "run": 1, "phase": phase, "node_count": 2}
    return job_pb2.Job(**{**known, **fields})


def failed(node_count: int = 0) -> job_pb2.Job:
    verdict = verdict_pb2.Verdict(text="rank 3 failed first")
    outcome = job_pb2.OUTCOME_FAILED
    return job(CLOSED, outcome=outcome, verdict=verdict, node_count=node_count)


def waits(kind: job_pb2.WaitKind.ValueType) -> job_pb2.Waiting:
    return job_pb2.Waiting(kind=kind, text="why")


ENDED = "j: run 1 has ended on every node"
RUNS = "j: round 2 runs 16 workers on 2 nodes"
MISSED_LINE = "run 1 of job j has ended meanwhile (failed): rank 3 failed first"
RESTART = RoundStarts(run=1, round=1)
RESIZE = RoundFits(run=1, update=jobs_pb2.JobUpdate(min_nodes=2, max_nodes=3))
GROWTH, DRAIN = waits(job_pb2.WAIT_KIND_GROWTH), waits(job_pb2.WAIT_KIND_DRAIN)
CASES: dict[str, tuple[Goal, job_pb2.Job, Standing, str]] = {
    "a run continues": (RunEnds(1), job(), PENDING, "j, running, 2 nodes"),
    "a run is over, and agents are there": (
        RunEnds(1),
        failed(node_count=2),
        PENDING,
        "j, failed, 2 nodes: rank 3 failed first",
    ),
    "a run is over everywhere": (RunEnds(1), failed(), REACHED, ENDED),
    "a later run has begun": (RunEnds(1), job(run=2), REACHED, ENDED),
    "the round is being stopped": (
        RESTART,
        job(STOPPING, round=round_of(1)),
        PENDING,
        "j, stopping, round 1, 16 workers, 2 nodes",
    ),
    "the old round runs": (
        RESTART,
        job(round=round_of(1)),
        PENDING,
        "j, running, round 1, 16 workers, 2 nodes",
    ),
    "the next round has no workers yet": (
        RESTART,
        job(round=round_of(2, is_started=False)),
        PENDING,
        "j, running, round 2, 16 workers, 2 nodes",
    ),
    "the next round runs": (RESTART, job(round=round_of(2)), REACHED, RUNS),
    "the next round has run and failed": (
        RESTART,
        job(FORMING, history=[job_pb2.RoundSummary(number=2, started_after=NOW)]),
        REACHED,
        "j: round 2 has started, and ended already",
    ),
    "the next round never had workers": (
        RESTART,
        job(FORMING, history=[job_pb2.RoundSummary(number=2)]),
        PENDING,
        "j, forming, 2 nodes",
    ),
    "a restarted run has failed": (RESTART, failed(), MISSED, MISSED_LINE),
    "a restarted run has failed, and agents are there": (RESTART, failed(2), MISSED, MISSED_LINE),
    "another run has begun": (
        RESTART,
        job(run=2, round=round_of(3)),
        MISSED,
        "run 1 of job j has ended meanwhile",
    ),
    "a round fits": (RESIZE, job(round=round_of(2)), REACHED, RUNS),
    "a round fits, and others wait": (
        RESIZE,
        job(round=round_of(2), waiting=GROWTH),
        PENDING,
        "j, running, round 2, 16 workers, 2 nodes: why",
    ),
    "a round fits while a node drains": (
        RESIZE,
        job(round=round_of(2), waiting=DRAIN),
        REACHED,
        RUNS,
    ),
    "a round is too small": (
        RESIZE,
        job(round=round_of(1, nodes=1)),
        PENDING,
        "j, running, round 1, 8 workers, 2 nodes",
    ),
    "a round is too large": (
        RESIZE,
        job(round=round_of(1, nodes=4)),
        PENDING,
        "j, running, round 1, 32 workers, 2 nodes",
    ),
    "a resized run has failed": (RESIZE, failed(), MISSED, MISSED_LINE),
}


@pytest.mark.parametrize("name", CASES)
def test_goal_is_judged(name: str) -> None:
    """By the job as it is, however many states were passed since."""
    goal, seen, standing, text = CASES[name]
    found = goal.judge(seen, ())

    assert (found.standing, found.text) == (standing, text)


def node(name: str, *, drains: bool = True) -> node_pb2.Node:
    return node_pb2.Node(name=name, drain_time_left=Duration(seconds=0) if drains else None)


@pytest.mark.parametrize(
    ("nodes", "standing", "text"),
    [
        (("a", "b", "c"), PENDING, "nodes a, b have not left: j, running, 2 nodes"),
        (("b", "c"), PENDING, "node b has not left: j, running, 2 nodes"),
        (("c",), REACHED, "j: nodes a, b have left"),
        ((), REACHED, "j: nodes a, b have left"),
    ],
)
def test_nodes_have_left(nodes: tuple[str, ...], standing: Standing, text: str) -> None:
    """Only those that were drained count, and all of them, also at their last moment."""
    found = NodesLeave(("a", "b")).judge(job(), [node(name) for name in nodes])

    assert (found.standing, found.text) == (standing, text)


def test_new_agent_of_a_node_that_left_is_another() -> None:
    """A supervisor may start it again at once, under the same name."""
    found = NodesLeave(("a",)).judge(job(), [node("a", drains=False)])

    assert (found.standing, found.text) == (REACHED, "j: node a has left")


@pytest.mark.parametrize(
    ("goal", "standing"),
    [(RunEnds(1), REACHED), (NodesLeave(("a",)), REACHED), (RESTART, MISSED), (RESIZE, MISSED)],
)
def test_run_that_is_over_needs_no_job(goal: Goal, standing: Standing) -> None:
    """It may have been deleted since: no node is left, and no round follows."""
    assert goal.judge_end("j", None).standing is standing
