"""WorkerService."""

from __future__ import annotations

from rallypoint.client.attempts import Call, Method
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.wire.durations import to_duration

REPORT_PROGRESS = Method(
    "/rallypoint.v1.WorkerService/ReportProgress",
    worker_pb2.ReportProgressRequest,
    worker_pb2.ReportProgressResponse,
)


def report_progress(
    job_id: str, step: int, *, step_ago_ms: int = 0
) -> Call[worker_pb2.ReportProgressRequest, worker_pb2.ReportProgressResponse]:
    """Report a step. A repeated report changes nothing: the highest step counts.

    Args:
        job_id: the job.
        step: counted over all rounds from 1 on; 0: none.
        step_ago_ms: how long ago it was reached.
    """
    request = worker_pb2.ReportProgressRequest(
        job_id=job_id,
        step=step,
        step_age=to_duration(step_ago_ms) if step_ago_ms else None,
    )
    return Call(REPORT_PROGRESS, request)
