"""The round that an agent holds, in its Hello."""

from __future__ import annotations

from rallypoint.base.limits import TEXT_CHARS_MAX, WORKERS_PER_NODE_MAX
from rallypoint.server.core.model.node import HeldRound, NodeState
from rallypoint.server.core.model.round import Assignment, RoundHeader, RoundReason
from rallypoint.server.rpc.convert.checks import limit_text, require
from rallypoint.server.rpc.convert.exits import to_exits
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import node_pb2, round_pb2

_STATES = {
    node_pb2.NODE_STATE_ASSIGNED: NodeState.ASSIGNED,
    node_pb2.NODE_STATE_STARTED: NodeState.STARTED,
    node_pb2.NODE_STATE_SUCCEEDED: NodeState.SUCCEEDED,
    node_pb2.NODE_STATE_FAILED: NodeState.FAILED,
    node_pb2.NODE_STATE_STOPPING: NodeState.UNREADY,
    node_pb2.NODE_STATE_BLOCKED: NodeState.BLOCKED,
}
_REASONS = {
    round_pb2.ROUND_REASON_UNSPECIFIED: RoundReason.UNKNOWN,
    round_pb2.ROUND_REASON_FIRST: RoundReason.FIRST,
    round_pb2.ROUND_REASON_WORKER_FAILED: RoundReason.WORKER_FAILED,
    round_pb2.ROUND_REASON_NODE_LOST: RoundReason.NODE_LOST,
    round_pb2.ROUND_REASON_NODE_LEFT: RoundReason.NODE_LEFT,
    round_pb2.ROUND_REASON_GROWTH: RoundReason.GROWTH,
    round_pb2.ROUND_REASON_START_OVERDUE: RoundReason.START_OVERDUE,
    round_pb2.ROUND_REASON_DRAINED: RoundReason.DRAINED,
}
"""Reasons for which a round can begin."""


def to_held_round(held: agent_pb2.HeldRound) -> HeldRound:
    """Return the round that an agent says it holds."""
    path = "hello.held"
    header, assignment = held.order.header, held.order.assignment
    require(held.state in _STATES, f"{path}.state", "is not a valid state for a held round")
    exited = (worker for worker in held.workers if worker.HasField("exit"))
    return HeldRound(
        header=_header(header, f"{path}.order.header"),
        assignment=_assignment(assignment, header, f"{path}.order.assignment"),
        state=_STATES[held.state],
        pids=tuple(worker.pid for worker in held.workers),
        exits=to_exits(exited, f"{path}.workers", assignment.local_world_size),
        start_failure=limit_text(held.start_failure, TEXT_CHARS_MAX),
    )


def _header(header: round_pb2.RoundHeader, path: str) -> RoundHeader:
    require(header.number > 0, f"{path}.number", "must be 1 or more")
    require(header.run > 0, f"{path}.run", "must be 1 or more")
    require(header.reason in _REASONS, f"{path}.reason", "is not a reason for a round to begin")
    return RoundHeader(
        number=header.number,
        run=header.run,
        world_size=header.world_size,
        group_world_size=header.group_world_size,
        master_addr=header.master_addr,
        master_port=header.master_port,
        restart_count=header.restart_count,
        reason=_REASONS[header.reason],
        epoch=header.epoch,
    )


def _assignment(
    assignment: round_pb2.Assignment, header: round_pb2.RoundHeader, path: str
) -> Assignment:
    for name in ("group_rank", "first_rank", "first_role_rank"):
        require(assignment.HasField(name), f"{path}.{name}", "is missing")
    require(
        assignment.group_rank < header.group_world_size
        and 1 <= assignment.local_world_size <= WORKERS_PER_NODE_MAX
        and assignment.first_rank + assignment.local_world_size <= header.world_size,
        path,
        "does not fit into the round",
    )
    return Assignment(
        group_rank=assignment.group_rank,
        first_rank=assignment.first_rank,
        local_world_size=assignment.local_world_size,
        role=assignment.role,
        first_role_rank=assignment.first_role_rank,
        role_world_size=assignment.role_world_size,
    )
