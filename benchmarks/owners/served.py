"""How soon jobs are served elsewhere, and who else has noticed."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from owners.fencing import Fencing
from rallypoint.server.shards.hashing import shard_of
from rallypoint.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc

ASK_S = 0.05
"""Time between two questions about a job."""
LOOK_S = 0.01
"""Time between two looks at who owns the jobs."""
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
        answers: queue.SimpleQueue[tuple[str, Any, float]] = queue.SimpleQueue()
        due_s = dict.fromkeys(jobs, 0.0)
        with grpc.insecure_channel(ask) as channel:
            stub = job_service_pb2_grpc.JobServiceStub(channel)
            while left and time.monotonic() < began_s + GIVE_UP_S:
                for job_id in left:
                    is_due = time.monotonic() >= due_s[job_id]
                    if is_due and self.owner(job_id) not in ("", gone):
                        due_s[job_id] = math.inf  # until it is answered
                        request = job_service_pb2.GetJobRequest(job_id=job_id)
                        call = stub.GetJob.future(request, timeout=ANSWER_S)
                        call.add_done_callback(partial(_note, answers, job_id))
                try:
                    job_id, call, at_s = answers.get(timeout=LOOK_S)
                except queue.Empty:
                    continue
                due_s[job_id] = at_s + ASK_S
                if call.code() is not grpc.StatusCode.OK:
                    continue
                moved.served_s.setdefault(job_id, at_s - began_s)
                if is_whole(call.result().job):
                    moved.attached_s[job_id] = at_s - began_s
                    left.discard(job_id)
        moved.missing = sorted(left)
        return moved


def _note(answers: queue.SimpleQueue[tuple[str, Any, float]], job_id: str, call: Any) -> None:
    """Note when a call has ended."""
    answers.put((job_id, call, time.monotonic()))


def explain(address: str, job_id: str) -> str:
    """Ask a coordinator about a job; return why it does not answer, or an empty string."""
    with grpc.insecure_channel(address) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        try:
            stub.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=10 * ANSWER_S)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return ""
