"""How soon jobs are served elsewhere, and who else has noticed."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from owners.fencing import Fencing
from rallypoint.server.core.model.shards import shard_of
from rallypoint.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc

ASK_S = 0.05
"""Time between an answer about a job that is not served yet, and the next question."""
ATTACHED_S = 0.1
"""The same of a job that is served: its agents are missing."""
AGAIN_S = 0.25
"""A question that has no answer is asked again after so long. The first one may still be answered,
so what is measured is not rounded up to the limit of a call."""
OPEN_MAX = 4
"""Questions about one job that are not answered yet."""
LOOK_S = 0.01
"""Time between two looks at who owns the jobs."""
ANSWER_S = 5.0
"""Longest wait for an answer."""
GIVE_UP_S = 30.0

_Answer = tuple[str, Any, float]
"""A job, the call that has ended, and when it did, by time.monotonic()."""


@dataclass
class Moved:
    """Jobs whose owner has gone."""

    served_s: dict[str, float] = field(default_factory=dict)
    """When each was answered for by another owner."""
    attached_s: dict[str, float] = field(default_factory=dict)
    """When all its agents were connected to that."""
    missing: list[str] = field(default_factory=list)
    """Jobs for which that took too long."""


@dataclass
class _Asked:
    """A job, and the questions about it."""

    shard: int
    due_s: float = 0.0
    """When to ask again, by time.monotonic()."""
    open: int = 0
    """Questions that are not answered yet."""

    def ask(self, stub: Any, job_id: str, answers: queue.SimpleQueue[_Answer]) -> None:
        """Ask once more."""
        self.due_s = time.monotonic() + AGAIN_S
        self.open += 1
        call = stub.GetJob.future(job_service_pb2.GetJobRequest(job_id=job_id), timeout=ANSWER_S)
        call.add_done_callback(partial(_note, answers, job_id))


class Asking:
    """Asks one coordinator about jobs, and does not try again by itself.

    It begins when their next owner has read the journal, which etcd shows: earlier questions would
    be refused, and they take time of the machine that the coordinators need.
    """

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
        moved = Moved()
        left = {job_id: _Asked(shard_of(job_id, self._shards)) for job_id in sorted(jobs)}
        answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        with grpc.insecure_channel(ask) as channel:
            stub = job_service_pb2_grpc.JobServiceStub(channel)
            while left and time.monotonic() < began_s + GIVE_UP_S:
                for job_id in self._choose(left, gone):
                    left[job_id].ask(stub, job_id, answers)
                try:
                    job_id, call, at_s = answers.get(timeout=LOOK_S)
                except queue.Empty:
                    continue
                asked = left.get(job_id)
                if asked is None:
                    continue  # an answer that comes late
                asked.open -= 1
                if call.code() is not grpc.StatusCode.OK:
                    asked.due_s = at_s + ASK_S
                    continue
                asked.due_s = at_s + ATTACHED_S
                moved.served_s.setdefault(job_id, at_s - began_s)
                if is_whole(call.result().job):
                    moved.attached_s[job_id] = at_s - began_s
                    del left[job_id]
        moved.missing = sorted(left)
        return moved

    def _choose(self, left: Mapping[str, _Asked], gone: str) -> list[str]:
        """Return the jobs to ask about now."""
        now_s = time.monotonic()
        ready = {
            shard
            for shard in {asked.shard for asked in left.values()}
            if self._fencing.address(shard) not in ("", gone) and self._fencing.has_loaded(shard)
        }
        return [
            job_id
            for job_id, asked in left.items()
            if asked.shard in ready and now_s >= asked.due_s and asked.open < OPEN_MAX
        ]


def _note(answers: queue.SimpleQueue[_Answer], job_id: str, call: Any) -> None:
    """Note when a call has ended."""
    answers.put((job_id, call, time.monotonic()))


def explain(address: str, job_id: str) -> str:
    """Ask a coordinator about a job; return why it does not answer, or an empty string."""
    with grpc.insecure_channel(address) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        try:
            stub.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=2 * ANSWER_S)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return ""
