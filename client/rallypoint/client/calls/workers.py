"""WorkerService."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rallypoint.client.attempts import Call, Method
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.wire.durations import to_duration

REPORT_PROGRESS = Method(
    "/rallypoint.v1.WorkerService/ReportProgress",
    worker_pb2.ReportProgressRequest,
    worker_pb2.ReportProgressResponse,
)


class Reached(NamedTuple):
    """How far a worker has come before its first step."""

    rank: int
    world_size: int
    """Workers of its round."""
    milestones: Mapping[worker_pb2.Milestone.ValueType, int]
    """Each with how long ago it was reached, in ms."""


def report_progress(
    job_id: str,
    step: int,
    *,
    step_ago_ms: int = 0,
    reached: Reached | None = None,
) -> Call[worker_pb2.ReportProgressRequest, worker_pb2.ReportProgressResponse]:
    """Report a step, or milestones. A repeated report changes nothing: the highest step counts.

    Args:
        job_id: the job.
        step: counted over all rounds from 1 on; 0: none.
        step_ago_ms: how long ago it was reached.
        reached: milestones of the worker.
    """
    request = worker_pb2.ReportProgressRequest(
        job_id=job_id,
        step=step,
        step_age=to_duration(step_ago_ms) if step_ago_ms else None,
    )
    if reached is not None:
        request.rank, request.world_size = reached.rank, reached.world_size
        for milestone, ago_ms in reached.milestones.items():
            request.milestones.add(milestone=milestone, age=to_duration(ago_ms))
    return Call(REPORT_PROGRESS, request)
