"""What is read of jobs and nodes."""

from __future__ import annotations

from collections.abc import Iterable

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
WATCH_JOBS = Method(f"{_JOBS}WatchJobs", jobs_pb2.WatchJobsRequest, jobs_pb2.WatchJobsResponse)
LIST_RUNS = Method(f"{_JOBS}ListRuns", jobs_pb2.ListRunsRequest, jobs_pb2.ListRunsResponse)
LIST_ROUNDS = Method(f"{_JOBS}ListRounds", jobs_pb2.ListRoundsRequest, jobs_pb2.ListRoundsResponse)
GET_NODE = Method(f"{_NODES}GetNode", nodes_pb2.GetNodeRequest, nodes_pb2.GetNodeResponse)
LIST_NODES = Method(f"{_NODES}ListNodes", nodes_pb2.ListNodesRequest, nodes_pb2.ListNodesResponse)


def get_job(
    job_id: str, view: job_pb2.JobView.ValueType
) -> Call[jobs_pb2.GetJobRequest, jobs_pb2.GetJobResponse]:
    """Read a job."""
    request = jobs_pb2.GetJobRequest(job_id=job_id, view=view)
    return Call(GET_JOB, request, attempt_s=READ_S_MAX)


def list_jobs(
    phases: Iterable[job_pb2.JobPhase.ValueType],
    outcomes: Iterable[job_pb2.Outcome.ValueType],
    prefix: str,
    order: jobs_pb2.JobOrder.ValueType,
    page_size: int,
) -> Listing[jobs_pb2.ListJobsRequest, jobs_pb2.ListJobsResponse, job_pb2.JobSummary]:
    """List jobs."""
    request = jobs_pb2.ListJobsRequest(
        phases=phases, outcomes=outcomes, job_id_prefix=prefix, order=order, page_size=page_size
    )
    return Listing(LIST_JOBS, request, lambda page: page.jobs)


def list_runs(
    job_id: str, page_size: int
) -> Listing[jobs_pb2.ListRunsRequest, jobs_pb2.ListRunsResponse, job_pb2.RunSummary]:
    """List the runs of a job."""
    request = jobs_pb2.ListRunsRequest(job_id=job_id, page_size=page_size)
    return Listing(LIST_RUNS, request, lambda page: page.runs)


def list_rounds(
    job_id: str, run: int, page_size: int
) -> Listing[jobs_pb2.ListRoundsRequest, jobs_pb2.ListRoundsResponse, job_pb2.RoundSummary]:
    """List the rounds of a job that have ended."""
    request = jobs_pb2.ListRoundsRequest(job_id=job_id, run=run, page_size=page_size)
    return Listing(LIST_ROUNDS, request, lambda page: page.rounds)


def watch_job(
    job_id: str, view: job_pb2.JobView.ValueType, after: int, *, across_runs: bool
) -> Following[jobs_pb2.WatchJobRequest, jobs_pb2.WatchJobResponse, jobs_pb2.WatchJobResponse]:
    """Follow a job. The next connection continues after the revision of the last answer.

    A coordinator without a journal learns of the job when its agents have found it.
    """
    request = jobs_pb2.WatchJobRequest(
        job_id=job_id, view=view, after_revision=after, across_runs=across_runs
    )

    def take(answer: jobs_pb2.WatchJobResponse) -> Iterable[jobs_pb2.WatchJobResponse]:
        request.after_revision = answer.revision
        return (answer,)

    absent = frozenset({grpc.StatusCode.NOT_FOUND})
    return Following(WATCH_JOB, request, take, transient=absent)


def watch_jobs(
    prefix: str, after: int | str
) -> Following[jobs_pb2.WatchJobsRequest, jobs_pb2.WatchJobsResponse, jobs_pb2.WatchJobsResponse]:
    """Follow all jobs. The next connection continues after the revision of the last answer.

    With several coordinators, an answer has a position instead.
    """
    request = jobs_pb2.WatchJobsRequest(job_id_prefix=prefix)
    if isinstance(after, str):
        request.after_position = after
    else:
        request.after_revision = after

    def take(answer: jobs_pb2.WatchJobsResponse) -> Iterable[jobs_pb2.WatchJobsResponse]:
        request.after_revision, request.after_position = answer.revision, answer.position
        return (answer,)

    return Following(WATCH_JOBS, request, take)


def get_node(
    job_id: str, node_name: str
) -> Call[nodes_pb2.GetNodeRequest, nodes_pb2.GetNodeResponse]:
    """Read a node."""
    request = nodes_pb2.GetNodeRequest(job_id=job_id, node_name=node_name)
    return Call(GET_NODE, request, attempt_s=READ_S_MAX)


def list_nodes(
    job_id: str, page_size: int
) -> Listing[nodes_pb2.ListNodesRequest, nodes_pb2.ListNodesResponse, node_pb2.Node]:
    """List the nodes of a job."""
    request = nodes_pb2.ListNodesRequest(job_id=job_id, page_size=page_size)
    return Listing(LIST_NODES, request, lambda page: page.nodes)
