"""The report at the end of a job: what a person needs to know, and nothing twice."""

from __future__ import annotations

from rallypoint.cli.render import render_finished
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, verdict_pb2


def test_report_names_the_culprit_and_the_others() -> None:
    """The first failure comes with node, rank, exit and output; the others in one line each."""
    exit = node_pb2.WorkerExit(signal=9, stderr_tail="last words\n")
    culprit = verdict_pb2.FailedWorker(node_name="b", rank=3, local_rank=1, pid=7, exit=exit)
    other = verdict_pb2.FailedWorker(
        node_name="a", rank=0, local_rank=0, exit=node_pb2.WorkerExit(exit_code=1)
    )
    verdict = verdict_pb2.Verdict(
        cause=verdict_pb2.VERDICT_CAUSE_WORKER_FAILED,
        culprit=culprit,
        collateral=[other],
        collateral_count=2,
        consequence_text="no restarts are left",
    )
    finished = agent_pb2.Finished(
        outcome=job_pb2.OUTCOME_FAILED, verdict=verdict, restart_count=2, round=5
    )

    lines = [line.strip() for line in render_finished(finished, "train.py").splitlines()]

    expected = [
        "train.py FAILED",
        "node      : b",
        "rank      : 3 (local_rank: 1)",
        "exitcode  : -9 (SIGKILL) (pid: 7)",
        "last words",
        "then      : no restarts are left",
        "rank 0 on a: exitcode 1",
        "and 1 others",
        "restarts  : 2, round 5",
    ]
    assert [line for line in expected if line not in lines] == []


def test_success_needs_no_report() -> None:
    """A job that succeeded says nothing."""
    finished = agent_pb2.Finished(outcome=job_pb2.OUTCOME_SUCCEEDED)

    assert render_finished(finished, "train.py") == ""
