"""What is read of jobs and nodes."""

from __future__ import annotations

import grpc

from rallypoint.client.attempts import READ_S_MAX, Call, Method
from rallypoint.client.calls.lists import Following, Listing
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import node_service_pb2 as nodes_pb2

_JOBS = "/rallypoint.v1.JobService/"
_NODES = "/rallypoint.v1.NodeService/"
GET_JOB = Method(f"{_JOBS}GetJob", jobs_pb2.GetJobRequest, jobs_pb2.GetJobResponse)
LIST_JOBS = Method(f"{_JOBS}ListJobs", jobs_pb2.ListJobsRequest, jobs_pb2.ListJobsResponse)
WATCH_JOB = Method(f"{_JOBS}WatchJob", jobs_pb2.WatchJobRequest, jobs_pb2.WatchJobResponse)
LIST_NODES = Method(f"{_NODES}ListNodes", nodes_pb2.ListNodesRequest, nodes_pb2.ListNodesResponse)


def get_job(
    job_id: str, view: job_pb2.JobView.ValueType
) -> Call[jobs_pb2.GetJobRequest, jobs_pb2.GetJobResponse]:
    """Read a job."""
    request = jobs_pb2.GetJobRequest(job_id=job_id, view=view)
    return Call(GET_JOB, request, attempt_s=READ_S_MAX)


def list_jobs(
    page_size: int,
) -> Listing[jobs_pb2.ListJobsRequest, jobs_pb2.ListJobsResponse, job_pb2.JobSummary]:
    """List all jobs."""
    request = jobs_pb2.ListJobsRequest(page_size=page_size)
    return Listing(LIST_JOBS, request, lambda page: page.jobs)


def watch_job(
    job_id: str, view: job_pb2.JobView.ValueType
) -> Following[jobs_pb2.WatchJobRequest, jobs_pb2.WatchJobResponse, jobs_pb2.WatchJobResponse]:
    """Follow a job. Every answer is the whole job, so a new connection just begins again.

    A coordinator without a journal learns of the job when its agents have found it.
    """
    request = jobs_pb2.WatchJobRequest(job_id=job_id, view=view)
    absent = frozenset({grpc.StatusCode.NOT_FOUND})
    return Following(WATCH_JOB, request, lambda answer: (answer,), transient=absent)


def list_nodes(
    job_id: str, page_size: int
) -> Listing[nodes_pb2.ListNodesRequest, nodes_pb2.ListNodesResponse, node_pb2.Node]:
    """List the nodes of a job."""
    request = nodes_pb2.ListNodesRequest(job_id=job_id, page_size=page_size)
    return Listing(LIST_NODES, request, lambda page: page.nodes)
