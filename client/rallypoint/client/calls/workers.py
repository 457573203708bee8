"""WorkerService."""

from __future__ import annotations

from rallypoint.client.attempts import Call, Method
from rallypoint.v1 import worker_service_pb2 as worker_pb2

REPORT_PROGRESS = Method(
    "/rallypoint.v1.WorkerService/ReportProgress",
    worker_pb2.ReportProgressRequest,
    worker_pb2.ReportProgressResponse,
)


def report_progress(
    job_id: str, step: int
) -> Call[worker_pb2.ReportProgressRequest, worker_pb2.ReportProgressResponse]:
    """Report a step. A repeated report changes nothing: the highest step counts."""
    request = worker_pb2.ReportProgressRequest(job_id=job_id, step=step)
    return Call(REPORT_PROGRESS, request)
