"""What a job waits for."""

from __future__ import annotations

from rallypoint.server.contract.mappers import AWAITED_NODE
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.reads.explain import Awaited, state_aside
from rallypoint.server.core.verdicts.health import describe, find_health
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration


def set_aside_message(job: Job, node: Node, now_ms: int) -> job_pb2.Waiting:
    """Return why the running round does not include a quarantined or cordoned node."""
    health = find_health(job.health, node.name)
    why = describe(health, now_ms)
    left_ms = health.quarantined_until_ms - now_ms
    text = f"this node is set aside: {why}"
    if not health.cordoned:
        text += f"; {health.reason}"
    return job_pb2.Waiting(
        kind=job_pb2.WAIT_KIND_SPARE,
        nodes=[AWAITED_NODE.encode(Awaited(node.name, state_aside(health), why, None))],
        time_left=None if health.cordoned else to_duration(max(0, left_ms)),
        text=text,
    )
