"""When a change has come true: the run has ended, a node has left, the next round runs. Pure.

A goal looks at a job of the coordinator's and says how far it is. A watch may merge several states
of a job, so no goal depends on having seen one that is only passed through.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct

from rallypoint.cli.operator.views.status import describe_change
from rallypoint.cli.operator.views.words import describe_count, describe_state
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2


class Standing(Enum):
    """How far a change is."""

    PENDING = "pending"
    REACHED = "reached"
    MISSED = "missed"
    """It cannot come true any more."""


class Progress(Struct, frozen=True):
    """How far a change is, and a line about it."""

    standing: Standing
    text: str


class Goal(Protocol):
    """What a change is to bring about."""

    @property
    def needs_nodes(self) -> bool:
        """Return whether `judge` looks at the job's nodes."""
        ...

    def judge(self, job: job_pb2.Job, nodes: Sequence[node_pb2.Node]) -> Progress:
        """Return how far it is.

        Args:
            job: as it is now.
            nodes: all of the job, if `needs_nodes`.
        """
        ...

    def judge_end(self, job_id: str, job: job_pb2.Job | None) -> Progress:
        """Return how it has ended once the run is over and no node is left.

        Args:
            job_id: name of the job.
            job: as it was last; None: unknown.
        """
        ...


class RunEnds(Struct, frozen=True):
    """The run has its outcome, and every node has left."""

    run: int
    needs_nodes: bool = False

    def judge(self, job: job_pb2.Job, nodes: Sequence[node_pb2.Node]) -> Progress:
        """Return how far it is."""
        if _is_over(job, self.run) and not job.node_count:
            return self.judge_end(job.job_id, job)
        if job.run != self.run:
            return self.judge_end(job.job_id, None)
        return Progress(Standing.PENDING, describe_change(job))

    def judge_end(self, job_id: str, job: job_pb2.Job | None) -> Progress:
        """Return that it is reached."""
        return Progress(Standing.REACHED, f"{job_id}: run {self.run} has ended on every node")


class NodesLeave(Struct, frozen=True):
    """These nodes belong to the job no more. Another agent of the same name may have come."""

    names: Sequence[str]
    needs_nodes: bool = True

    def judge(self, job: job_pb2.Job, nodes: Sequence[node_pb2.Node]) -> Progress:
        """Return how far it is."""
        leaving = {node.name for node in nodes if node.HasField("drain_time_left")}
        there = [name for name in self.names if name in leaving]
        if not there:
            return self.judge_end(job.job_id, job)
        text = f"{_list(there)} {'has' if len(there) == 1 else 'have'} not left"
        return Progress(Standing.PENDING, f"{text}: {describe_change(job)}")

    def judge_end(self, job_id: str, job: job_pb2.Job | None) -> Progress:
        """Return that it is reached."""
        verb = "has" if len(self.names) == 1 else "have"
        return Progress(Standing.REACHED, f"{job_id}: {_list(self.names)} {verb} left")


class RoundStarts(Struct, frozen=True):
    """A round after this one runs its workers, or has done so."""

    run: int
    round: int
    """The one that was stopped; 0: there was none."""
    needs_nodes: bool = False

    def judge(self, job: job_pb2.Job, nodes: Sequence[node_pb2.Node]) -> Progress:
        """Return how far it is."""
        if job.run != self.run:
            return self.judge_end(job.job_id, None)
        if _has_started(job) and job.round.header.number > self.round:
            return Progress(Standing.REACHED, _describe_round(job))
        for ended in job.history:
            if ended.number > self.round and ended.HasField("started_after"):
                text = f"{job.job_id}: round {ended.number} has started, and ended already"
                return Progress(Standing.REACHED, text)
        if _is_over(job, self.run):
            return self.judge_end(job.job_id, job)
        return Progress(Standing.PENDING, describe_change(job))

    def judge_end(self, job_id: str, job: job_pb2.Job | None) -> Progress:
        """Return that no round can follow."""
        return _missed(job_id, self.run, job)


class RoundFits(Struct, frozen=True):
    """A round of a size that is wanted runs, and no node waits to be included."""

    run: int
    update: jobs_pb2.JobUpdate
    needs_nodes: bool = False

    def judge(self, job: job_pb2.Job, nodes: Sequence[node_pb2.Node]) -> Progress:
        """Return how far it is."""
        if job.run != self.run:
            return self.judge_end(job.job_id, None)
        fewest, most = self.update.min_nodes, self.update.max_nodes
        fits = fewest <= job.round.header.group_world_size <= most
        grows = job.waiting.kind == job_pb2.WAIT_KIND_GROWTH
        if _has_started(job) and fits and not grows:
            return Progress(Standing.REACHED, _describe_round(job))
        if _is_over(job, self.run):
            return self.judge_end(job.job_id, job)
        return Progress(Standing.PENDING, describe_change(job))

    def judge_end(self, job_id: str, job: job_pb2.Job | None) -> Progress:
        """Return that no round can follow."""
        return _missed(job_id, self.run, job)


def _is_over(job: job_pb2.Job, run: int) -> bool:
    return job.run == run and job.phase == job_pb2.JOB_PHASE_CLOSED


def _has_started(job: job_pb2.Job) -> bool:
    """Return whether a round runs, and every node of it has started its workers."""
    return job.phase == job_pb2.JOB_PHASE_RUNNING and job.round.HasField("started_after")


def _describe_round(job: job_pb2.Job) -> str:
    header = job.round.header
    workers = describe_count(header.world_size, "worker")
    where = describe_count(header.group_world_size, "node")
    return f"{job.job_id}: round {header.number} runs {workers} on {where}"


def _missed(job_id: str, run: int, job: job_pb2.Job | None) -> Progress:
    text = f"run {run} of job {job_id} has ended meanwhile"
    if job is not None and job.phase == job_pb2.JOB_PHASE_CLOSED:
        why = f": {job.verdict.text}" if job.verdict.text else ""
        text += f" ({describe_state(job.phase, job.outcome)}){why}"
    return Progress(Standing.MISSED, text)


def _list(names: Sequence[str]) -> str:
    """Return nodes as a text: `node a`, `nodes a, b`."""
    return f"node{'' if len(names) == 1 else 's'} {', '.join(names)}"
