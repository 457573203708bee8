"""The report at the end of a job: what a person needs to know, and nothing twice."""

from __future__ import annotations

from rallypoint.cli.render import render_finished
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, verdict_pb2


def group(
    error: str, *ranks: tuple[int, int], exit: str = "exit code 1", count: int = 0
) -> verdict_pb2.FailureGroup:
    return verdict_pb2.FailureGroup(
        ranks=[verdict_pb2.RankRange(first=first, last=last) for first, last in ranks],
        count=count or sum(last - first + 1 for first, last in ranks),
        exit=exit,
        error=error,
    )


def render(*groups: verdict_pb2.FailureGroup, failed: int, evidence: str = "") -> list[str]:
    """Return the report of a run in which rank 3 was the culprit and `failed` others failed."""
    exit = node_pb2.WorkerExit(signal=9, stderr_tail="last words\n")
    verdict = verdict_pb2.Verdict(
        cause=verdict_pb2.VERDICT_CAUSE_WORKER_FAILED,
        culprit=verdict_pb2.FailedWorker(node_name="b", rank=3, local_rank=1, pid=7, exit=exit),
        collateral_count=failed,
        consequence_text="no restarts are left",
        groups=groups,
        evidence=evidence,
    )
    finished = agent_pb2.Finished(
        outcome=job_pb2.OUTCOME_FAILED, verdict=verdict, restart_count=2, round=5
    )
    return render_finished(finished, "train.py").splitlines()


def test_report_names_the_culprit_and_the_others() -> None:
    """The first failure comes with node, rank, exit and output; the others in two lines a kind."""
    lines = render(
        group("", (3, 3), exit="signal 9 (SIGKILL)"),
        group("Traceback:\n  File x\nRuntimeError: Connection reset by *", (0, 2), (7, 7)),
        failed=5,
        evidence="rank 0 was reported first, but with a broken connection",
    )

    assert lines == [
        "=" * 64,
        "train.py FAILED",
        "-" * 64,
        "First failure:",
        "  node      : b",
        "  rank      : 3 (local_rank: 1)",
        "  exitcode  : -9 (SIGKILL) (pid: 7)",
        "  ran for   : 0.0 s",
        "  because   : rank 0 was reported first, but with a broken connection",
        "  end of its standard error:",
        "    last words",
        "  then      : no restarts are left",
        "  collateral: 5 more failed:",
        "    ranks 0-2,7: exit code 1",
        "      RuntimeError: Connection reset by *",
        "    and 1 others",
        "  restarts  : 2, round 5",
        "=" * 64,
    ]


def test_failures_like_the_first_are_not_told_again() -> None:
    """Workers that failed as the culprit did are a line; the culprit alone is none."""
    lines = render(group("ValueError: x", (0, 511), exit="signal 9 (SIGKILL)"), failed=511)

    at = lines.index("  collateral: 511 more failed:")
    assert lines[at + 1] == "    ranks 0-511: signal 9 (SIGKILL), like the first"
    assert lines[at + 2].startswith("  restarts")


def test_many_ranges_and_long_lines_are_cut() -> None:
    """A report has a line's length, however scattered the ranks and however long the error."""
    scattered = [(2 * n, 2 * n) for n in range(40)]
    lines = render(group("x" * 999, *scattered, count=100), failed=100)

    at = lines.index("  collateral: 100 more failed:")
    assert lines[at + 1] == ("    ranks 0,2,4,6,8,10,12,14,16,18,20,22 and 88 more: exit code 1")
    assert lines[at + 2] == "      " + "x" * 119 + "…"


def test_success_needs_no_report() -> None:
    """A job that succeeded says nothing."""
    finished = agent_pb2.Finished(outcome=job_pb2.OUTCOME_SUCCEEDED)

    assert render_finished(finished, "train.py") == ""
