"""A collective that times out: the verdict names the rank that did not come to it."""

from __future__ import annotations

from pathlib import Path

from rallypoint.v1 import job_pb2, verdict_pb2
from support.processes.world import World

LATE = Path(__file__).with_name("late.py")
CULPRIT = 2
NODES, WORKERS = 2, 2
LIMIT_S = 120.0


def test_rank_that_did_not_come_is_named(world: World) -> None:
    """With the line of code that kept it. The others are collateral, and one restart is charged."""
    agents = [
        world.agent(
            name,
            *("--max-restarts=1", "--restart-backoff=0"),
            nnodes=str(NODES),
            nproc=WORKERS,
            script=(str(LATE), str(CULPRIT)),
        )
        for name in ("a", "b")
    ]

    assert [agent.wait(LIMIT_S) for agent in agents] == [0, 0]
    job = world.jobs.get(world.job_id)
    assert (job.outcome, job.restart_count) == (job_pb2.OUTCOME_SUCCEEDED, 1)
    verdict = job.history[0].verdict
    assert verdict.cause == verdict_pb2.VERDICT_CAUSE_HUNG, verdict.text
    assert verdict.node_name == "b"
    assert verdict.text.startswith(f"a collective timed out: on node b, rank {CULPRIT} ")
    assert "load_batch" in verdict.text
    assert verdict.collateral_count > 0
