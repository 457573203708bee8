"""Nodes, their workers and their health."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from msgspec.structs import replace

from rallypoint.server.contract.mappers import ASSIGNMENT, EXIT, STATES
from rallypoint.server.core.model.job import Job, NodeHealth
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Assignment
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.server.core.state.state import State
from rallypoint.server.core.verdicts.health import find_health, is_notable, recent_failures
from rallypoint.v1 import node_pb2
from rallypoint.wire.durations import to_duration, to_optional_duration

SHOWN_MAX = 16_384
"""Sessions whose shown id is kept: it takes a microsecond to compute, for every node shown."""


@lru_cache(maxsize=SHOWN_MAX)
def show_session(session: str) -> str:
    """Return the id that readers and the log get for a session.

    The session's own id is all that a connection needs to resume it, so only its agent may know it.
    """
    return hashlib.blake2s(session.encode(), digest_size=16).hexdigest()


def node_message(state: State, job: Job, node: Node, now_ms: int) -> node_pb2.Node:
    """Return a node of a job."""
    assignment = node.assignment
    shown = STATES[node.state]
    if node.member and job.phase is Phase.STOPPING and node.state is not NodeState.READY:
        shown = node_pb2.NODE_STATE_STOPPING
    message = node_pb2.Node(
        name=node.name,
        session_id=show_session(node.session),
        state=shown,
        attached=node.attached,
        address=node.identity.address,
        host_name=node.identity.host_name,
        local_world_size=node.identity.local_world_size,
        role=node.identity.role,
        labels=dict(node.identity.labels),
        assignment=None if assignment is None else ASSIGNMENT.encode(assignment),
        spare=job.phase is Phase.RUNNING and node.is_eligible and not node.member,
        silent_for=to_duration(state.silent_ms(node, now_ms)),
        drain_time_left=to_optional_duration(
            None if node.drain is None else max(0, node.drain.until_ms - now_ms)
        ),
    )
    health = find_health(job.health, node.name)
    if is_notable(health, job.spec, now_ms):
        message.health.CopyFrom(health_message(health, job.spec, now_ms))
    if assignment is not None:
        message.workers.extend(_worker_messages(node, assignment, now_ms))
    return message


def _worker_messages(node: Node, assignment: Assignment, now_ms: int) -> list[node_pb2.Worker]:
    exits = {exit.local_rank: exit for exit in node.exits}
    workers: list[node_pb2.Worker] = []
    for local_rank in range(assignment.local_world_size):
        worker = node_pb2.Worker(local_rank=local_rank, rank=assignment.first_rank + local_rank)
        exit = exits.get(local_rank)
        if local_rank < len(node.pids):
            worker.pid = node.pids[local_rank]
        if exit is not None:
            ended, running = node_pb2.WORKER_STATE_EXITED, node_pb2.WORKER_STATE_RUNNING
            worker.state = ended if exit.has_ended else running
            worker.exit.CopyFrom(exit_message(exit, now_ms, whole=False))
        elif worker.pid and node.state is not NodeState.READY:
            worker.state = node_pb2.WORKER_STATE_RUNNING
        else:
            worker.state = node_pb2.WORKER_STATE_PENDING
        workers.append(worker)
    return workers


def exit_message(exit: WorkerExit, now_ms: int | None, *, whole: bool) -> node_pb2.WorkerExit:
    """Return how a worker failed or ended; with `whole` also its error and its last words.

    Its age is that at `now_ms`; None: that at its report.
    """
    age_ms = exit.ago_ms if now_ms is None or exit.at_ms is None else now_ms - exit.at_ms
    message = EXIT.to_message(replace(exit, ago_ms=age_ms))
    if not whole:
        for name in ("error", "stderr_tail", "error_file", "stderr_file"):
            message.ClearField(name)
    return message


def health_message(health: NodeHealth, spec: JobSpec, now_ms: int) -> node_pb2.NodeHealth:
    """Return what a job knows about the health of a node."""
    left_ms = health.quarantined_until_ms - now_ms
    return node_pb2.NodeHealth(
        node_name=health.name,
        failure_count=len(recent_failures(health, spec, now_ms)),
        quarantine_time_left=to_duration(left_ms) if left_ms > 0 else None,
        quarantine_count=health.quarantines,
        cordoned=health.cordoned,
        reason=health.reason,
    )
