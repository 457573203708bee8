"""How soon jobs are served elsewhere, and who else has noticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import grpc

from owners.fencing import Fencing
from rallypoint.server.shards.hashing import shard_of
from rallypoint.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc

ASK_S = 0.05
"""Time between two questions about a job."""
ANSWER_S = 1.0
"""Longest wait for an answer."""
GIVE_UP_S = 30.0


@dataclass
class Moved:
    """Jobs whose owner has gone."""

    served_s: dict[str, float] = field(default_factory=dict)
    """When each was answered for by another owner."""
    attached_s: dict[str, float] = field(default_factory=dict)
    """When all its agents were connected to that."""
    missing: list[str] = field(default_factory=list)
    """Jobs for which that took too long."""


class Asking:
    """Asks one coordinator about jobs, all at once, and does not try again by itself."""

    def __init__(self, fencing: Fencing, shards: int) -> None:
        self._fencing = fencing
        self._shards = shards

    def owner(self, job_id: str) -> str:
        """Return where the owner of a job is; empty: it has none."""
        return self._fencing.address(shard_of(job_id, self._shards))

    def follow(
        self,
        jobs: Collection[str],
        gone: str,
        ask: str,
        began_s: float,
        is_whole: Callable[[job_pb2.Job], bool],
    ) -> Moved:
        """Wait until jobs have another owner that answers for them, and has their agents.

        Args:
            jobs: their ids.
            gone: address of the owner that they had.
            ask: address of another coordinator.
            began_s: when the owner has gone, by time.monotonic().
            is_whole: whether a job has all its agents.
        """
        moved, left = Moved(), set(jobs)
        with grpc.insecure_channel(ask) as channel:
            stub = job_service_pb2_grpc.JobServiceStub(channel)
            while left and time.monotonic() < began_s + GIVE_UP_S:
                due_s = time.monotonic() + ASK_S
                asked = [one for one in left if self.owner(one) not in ("", gone)]
                calls = {
                    one: stub.GetJob.future(
                        job_service_pb2.GetJobRequest(job_id=one), timeout=ANSWER_S
                    )
                    for one in asked
                }
                for job_id, call in calls.items():
                    try:
                        job = call.result().job
                    except grpc.RpcError:
                        continue
                    passed_s = time.monotonic() - began_s
                    moved.served_s.setdefault(job_id, passed_s)
                    if is_whole(job):
                        moved.attached_s[job_id] = passed_s
                        left.discard(job_id)
                time.sleep(max(0.0, due_s - time.monotonic()))
        moved.missing = sorted(left)
        return moved


def explain(address: str, job_id: str) -> str:
    """Ask a coordinator about a job; return why it does not answer, or an empty string."""
    with grpc.insecure_channel(address) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        try:
            stub.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=10 * ANSWER_S)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return ""
