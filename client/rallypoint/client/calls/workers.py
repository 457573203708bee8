"""WorkerService."""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.client.attempts import Call, Method
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.wire.durations import to_duration

REPORT_PROGRESS = Method(
    "/rallypoint.v1.WorkerService/ReportProgress",
    worker_pb2.ReportProgressRequest,
    worker_pb2.ReportProgressResponse,
)


def report_progress(
    job_id: str,
    step: int,
    *,
    step_ago_ms: int = 0,
    rank: int | None = None,
    world_size: int = 0,
    milestones: Mapping[worker_pb2.Milestone.ValueType, int] | None = None,
) -> Call[worker_pb2.ReportProgressRequest, worker_pb2.ReportProgressResponse]:
    """Report a step, or milestones. A repeated report changes nothing: the highest step counts.

    Args:
        job_id: the job.
        step: counted over all rounds from 1 on; 0: none.
        step_ago_ms: how long ago it was reached.
        rank: of the worker that has reached the milestones.
        world_size: workers of its round.
        milestones: each with how long ago it was reached, in ms.
    """
    request = worker_pb2.ReportProgressRequest(
        job_id=job_id,
        step=step,
        step_age=to_duration(step_ago_ms) if step_ago_ms else None,
        rank=rank,
        world_size=world_size,
        milestones=[
            worker_pb2.MilestoneReached(milestone=one, age=to_duration(ago_ms))
            for one, ago_ms in (milestones or {}).items()
        ],
    )
    return Call(REPORT_PROGRESS, request)
