"""Jobs as a coordinator shows them: read once, or watched until they are as expected."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.wire.channel import client_options
from support.processes.feed import LIMIT_S


class Jobs:
    """A client of one coordinator's JobService."""

    def __init__(self, target: str, channel: grpc.Channel | None = None) -> None:
        """Make calls to `target`, on a channel of the caller if there is one."""
        self.channel = channel or grpc.insecure_channel(target, options=client_options())
        self._stub = service_grpc.JobServiceStub(self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def get(self, job_id: str) -> job_pb2.Job:
        return self._stub.GetJob(service_pb2.GetJobRequest(job_id=job_id), timeout=LIMIT_S).job

    def page(self, page_size: int = 0, page_token: str = "") -> service_pb2.ListJobsResponse:
        request = service_pb2.ListJobsRequest(page_size=page_size, page_token=page_token)
        return self._stub.ListJobs(request, timeout=LIMIT_S)

    def watch(self, job_id: str, limit_s: float = LIMIT_S) -> Generator[job_pb2.Job]:
        """Yield an existing job, now and after every change, until its run has ended."""
        call = self._stub.WatchJob(service_pb2.WatchJobRequest(job_id=job_id), timeout=limit_s)
        job = job_pb2.Job()
        try:
            for answer in call:
                job = answer.job
                yield job
        except grpc.RpcError as error:
            if call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            raise AssertionError(f"the job is after {limit_s:g} s still:\n{job}") from error
        finally:
            call.cancel()

    def wait(
        self, job_id: str, is_wanted: Callable[[job_pb2.Job], bool], limit_s: float = LIMIT_S
    ) -> job_pb2.Job:
        """Watch an existing job until it is as wanted; return it."""
        job = job_pb2.Job()
        with contextlib.closing(self.watch(job_id, limit_s)) as states:
            for job in states:
                if is_wanted(job):
                    return job
        raise AssertionError(f"the run ended before it was as wanted:\n{job}")

    def history(self, job_id: str) -> list[job_pb2.Job]:
        """Return every state of a job from now until its run has ended and all nodes know."""
        return list(self.watch(job_id))

    def health(self, service: str = "") -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT_S)
        status: int = answer.status
        return status


def node(job: job_pb2.Job, name: str) -> node_pb2.Node:
    """Return a job's node of that name; an empty one when there is none."""
    return next((node for node in job.nodes if node.name == name), node_pb2.Node())


def is_started(job: job_pb2.Job, round: int) -> bool:
    """Return whether all workers of a round run."""
    states = [node.state for node in job.nodes if not node.spare]
    return job.round.header.number == round and set(states) == {node_pb2.NODE_STATE_STARTED}


def pids(job: job_pb2.Job) -> list[int]:
    """Return the pids of a job's workers, by rank."""
    workers = [worker for node in job.nodes for worker in node.workers]
    return [worker.pid for worker in sorted(workers, key=lambda worker: worker.rank)]
