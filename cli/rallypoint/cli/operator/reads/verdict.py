"""`rallypoint verdict`: what failed in a run."""

from __future__ import annotations

from typing import Annotated

from rallypoint.cli.operator.failures import NotFound
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, Job, argument
from rallypoint.v1 import job_pb2, verdict_pb2


@Command
def verdict(
    invocation: Invocation,
    job: Job,
    run: Annotated[
        int | None,
        argument("RUN", min=1, help="number of a run; without it: the latest"),
    ] = None,
) -> None:
    """Say what failed first in a run, where and why, and what the coordinator did about it.

    The verdict is about the latest round that failed. For an earlier run it lacks the output of
    workers, which the coordinator does not keep. JSON is null when nothing has failed.
    """
    from rallypoint.cli.operator.views.verdicts import render_verdict

    number, outcome, found = _find(invocation, job, run)
    if invocation.output.is_json:
        invocation.output.print_json({"jobId": job, "run": str(number), "verdict": found})
    elif found is None:
        invocation.output.print(f"{job} run {number}: nothing has failed")
    else:
        has_succeeded = outcome == job_pb2.OUTCOME_SUCCEEDED
        title = f"{job} run {number}"
        invocation.output.print(render_verdict(found, title, has_succeeded=has_succeeded))


def _find(
    invocation: Invocation, job: str, run: int | None
) -> tuple[int, job_pb2.Outcome.ValueType, verdict_pb2.Verdict | None]:
    """Return the number of a run, its outcome, and its verdict if it has one.

    Raises:
        NotFound: there is no such run, or it is forgotten.
    """
    reader = invocation.reader(job)
    latest = reader.get_job(job, view=job_pb2.JOB_VIEW_BASIC).job
    if run in (None, latest.run):
        return latest.run, latest.outcome, latest.verdict if latest.HasField("verdict") else None
    for one in reader.list_runs(job):
        if one.run == run:
            return run, one.outcome, one.verdict if one.HasField("verdict") else None
    raise NotFound(f"{job} has no run {run}; the latest is run {latest.run}")
