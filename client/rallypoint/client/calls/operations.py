"""What operators change: jobs and nodes.

Every call has a new request id, so the coordinator carries it out once, however often it is sent. A
coordinator that has started again without its memory does not know the id: only a run or a round in
the request shows it that the call is an old one.
"""

from __future__ import annotations

import secrets
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask

from rallypoint.client.attempts import Call, Method, Request, Response
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import node_service_pb2 as nodes_pb2
from rallypoint.wire.durations import to_duration

_JOBS = "/rallypoint.v1.JobService/"
_NODES = "/rallypoint.v1.NodeService/"
CREATE_JOB = Method(f"{_JOBS}CreateJob", jobs_pb2.CreateJobRequest, jobs_pb2.CreateJobResponse)
CANCEL_JOB = Method(f"{_JOBS}CancelJob", jobs_pb2.CancelJobRequest, jobs_pb2.CancelJobResponse)
RESTART_JOB = Method(f"{_JOBS}RestartJob", jobs_pb2.RestartJobRequest, jobs_pb2.RestartJobResponse)
UPDATE_JOB = Method(f"{_JOBS}UpdateJob", jobs_pb2.UpdateJobRequest, jobs_pb2.UpdateJobResponse)
DELETE_JOB = Method(f"{_JOBS}DeleteJob", jobs_pb2.DeleteJobRequest, jobs_pb2.DeleteJobResponse)
DRAIN_NODE = Method(f"{_NODES}DrainNode", nodes_pb2.DrainNodeRequest, nodes_pb2.DrainNodeResponse)
CORDON_NODE = Method(
    f"{_NODES}CordonNode", nodes_pb2.CordonNodeRequest, nodes_pb2.CordonNodeResponse
)
UNCORDON_NODE = Method(
    f"{_NODES}UncordonNode", nodes_pb2.UncordonNodeRequest, nodes_pb2.UncordonNodeResponse
)


def create_job(
    job_id: str, spec: job_pb2.JobSpec
) -> Call[jobs_pb2.CreateJobRequest, jobs_pb2.CreateJobResponse]:
    """Create a job."""
    return _once(CREATE_JOB, jobs_pb2.CreateJobRequest(job_id=job_id, spec=spec))


def cancel_job(
    job_id: str, run: int, reason: str, *, give_up_silent_nodes: bool = False
) -> Call[jobs_pb2.CancelJobRequest, jobs_pb2.CancelJobResponse]:
    """Cancel a run."""
    request = jobs_pb2.CancelJobRequest(
        job_id=job_id, run=run, reason=reason, give_up_silent_nodes=give_up_silent_nodes
    )
    return _once(CANCEL_JOB, request)


def restart_job(
    job_id: str, round: int, reason: str
) -> Call[jobs_pb2.RestartJobRequest, jobs_pb2.RestartJobResponse]:
    """Restart the workers of a job."""
    request = jobs_pb2.RestartJobRequest(job_id=job_id, round=round, reason=reason)
    return _once(RESTART_JOB, request)


def update_job(
    job_id: str,
    update: jobs_pb2.JobUpdate,
    revision: int,
    reason: str = "",
    *,
    require_nodes: bool = False,
) -> Call[jobs_pb2.UpdateJobRequest, jobs_pb2.UpdateJobResponse]:
    """Change the specification of a run. The mask names what is set."""
    mask = FieldMask(paths=[field.name for field, _ in update.ListFields()])
    request = jobs_pb2.UpdateJobRequest(
        job_id=job_id,
        update=update,
        update_mask=mask,
        revision=revision,
        reason=reason,
        require_nodes=require_nodes,
    )
    return _once(UPDATE_JOB, request)


def delete_job(
    job_id: str, run: int
) -> Call[jobs_pb2.DeleteJobRequest, jobs_pb2.DeleteJobResponse]:
    """Delete a job that has ended."""
    return _once(DELETE_JOB, jobs_pb2.DeleteJobRequest(job_id=job_id, run=run))


def drain_node(
    job_id: str, node_name: str, drain_timeout_s: float, reason: str
) -> Call[nodes_pb2.DrainNodeRequest, nodes_pb2.DrainNodeResponse]:
    """Drain a node."""
    request = nodes_pb2.DrainNodeRequest(
        job_id=job_id,
        node_name=node_name,
        drain_timeout=to_duration(round(drain_timeout_s * 1000)),
        reason=reason,
    )
    return _once(DRAIN_NODE, request)


def cordon_node(
    job_id: str, node_name: str, reason: str
) -> Call[nodes_pb2.CordonNodeRequest, nodes_pb2.CordonNodeResponse]:
    """Cordon a node."""
    request = nodes_pb2.CordonNodeRequest(job_id=job_id, node_name=node_name, reason=reason)
    return _once(CORDON_NODE, request)


def uncordon_node(
    job_id: str, node_name: str, reason: str
) -> Call[nodes_pb2.UncordonNodeRequest, nodes_pb2.UncordonNodeResponse]:
    """Uncordon a node."""
    request = nodes_pb2.UncordonNodeRequest(job_id=job_id, node_name=node_name, reason=reason)
    return _once(UNCORDON_NODE, request)


def _once(method: Method[Request, Response], request: Request) -> Call[Request, Response]:
    """Return the call of a request that is carried out once, however often it is sent."""
    change: Any = request  # the protocol of all of them
    change.request_id = secrets.token_hex(16)
    return Call(method, request)
