"""`rallypoint explain`: what a job waits for, and what to do."""

from __future__ import annotations

from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, Job
from rallypoint.v1 import job_pb2


@Command
def explain(
    invocation: Invocation,
    job: Job,
) -> None:
    """Say what a job waits for, until when, for which nodes, and what to do about it.

    With --output json, it is null for a job that waits for nothing.
    """
    from rallypoint.cli.operator.views.explaining import render_waiting

    found = invocation.reader(job).get_job(job, view=job_pb2.JOB_VIEW_BASIC).job
    if invocation.output.is_json:
        waiting = found.waiting if found.HasField("waiting") else None
        invocation.output.print_json({"jobId": found.job_id, "waiting": waiting})
    else:
        invocation.output.print(render_waiting(found))
