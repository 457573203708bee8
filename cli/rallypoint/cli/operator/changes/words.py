"""What a change has done, in one line."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from rallypoint.base.exit_codes import EXIT_CANCELLED
from rallypoint.cli.operator.views.words import describe_duration, describe_size, describe_state
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.wire.durations import to_ms

GONE = "{job}: it was deleted meanwhile"


def describe_cancel(
    job_id: str, run: int, job: job_pb2.JobSummary, *, is_forced: bool = False
) -> str:
    """Return what a cancellation has done.

    Args:
        job_id: as the user gave it.
        run: that was meant; 0: the latest.
        job: after the change; without a name: it was deleted.
        is_forced: silent nodes were given up.
    """
    if not job.job_id:
        return GONE.format(job=job_id)
    given_up = "; silent nodes are given up" if is_forced else ""
    if run and job.run != run:
        return f"{job_id}: run {job.run} is the latest, not {run}; nothing was done"
    if job.outcome == job_pb2.OUTCOME_CANCELLED:
        return f"{job_id}: run {job.run} is cancelled{given_up}{_agents(job)}"
    outcome = describe_state(job.phase, job.outcome)
    done = given_up or "; there is nothing to cancel"
    return f"{job_id}: run {job.run} has ended already ({outcome}){done}"


def _agents(job: job_pb2.JobSummary) -> str:
    if not job.node_count:
        return ""
    nodes = "its node stops" if job.node_count == 1 else f"its {job.node_count} nodes stop"
    return f"; {nodes} the workers, and the agents exit with {EXIT_CANCELLED}"


def describe_restart(job_id: str, round: int, job: job_pb2.JobSummary) -> str:
    """Return what a restart has done; the arguments are like those of `describe_cancel`."""
    if not job.job_id:
        return GONE.format(job=job_id)
    if round and job.round != round:
        return f"{job_id}: round {job.round} is the latest, not {round}; nothing was done"
    if job.phase == job_pb2.JOB_PHASE_FORMING:
        why = f": {job.waiting}" if job.waiting else ""
        return f"{job_id}: the next round begins as soon as it can{why}"
    return f"{job_id}: round {job.round} is being stopped; the next one starts the workers again"


def describe_resize(job_id: str, update: jobs_pb2.JobUpdate, job: job_pb2.JobSummary) -> str:
    """Return what an update has done."""
    if not job.job_id:
        return GONE.format(job=job_id)
    parts = []
    if update.HasField("min_nodes"):
        size = describe_size(job.min_nodes, job.max_nodes)
        noun = "node" if size == "1" else "nodes"
        parts.append(f"it takes {size} {noun} now, and has {job.node_count}")
    if update.HasField("max_restarts"):
        parts.append(f"it may restart {job.max_restarts} times, {job.restart_count} of them used")
    if job.phase == job_pb2.JOB_PHASE_STOPPING:
        parts.append(f"round {job.round} is being stopped")
    return f"{job_id}: {'; '.join(parts)}"


def describe_drain(job_id: str, node: str, time_left: Duration) -> str:
    """Return what a drain has done."""
    if to_ms(time_left):
        limit = describe_duration(time_left)
        return f"{job_id}: node {node} drains; workers that still run are stopped in {limit}"
    return f"{job_id}: node {node} leaves; workers that still run are stopped now"


def describe_cordon(job_id: str, node: str, near: str, *, is_connected: bool) -> str:
    """Return what a cordon has done.

    Args:
        job_id: the job.
        node: the node.
        near: which other node may be meant; empty: unknown.
        is_connected: a node of this name is connected.
    """
    text = f"{job_id}: node {node} is cordoned; later rounds do not include it"
    if is_connected:
        return text
    hint = f"; {near}" if near else ""
    return f"{text}; none of this name is connected{hint}"


def describe_uncordon(job_id: str, node: str) -> str:
    """Return what lifting a cordon has done."""
    return f"{job_id}: node {node} is admitted; later rounds may include it"
