"""The round that an agent holds, in its Hello."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rallypoint.server.core.model.node import HeldRound, NodeState
from rallypoint.server.core.model.round import Assignment, Milestone, RoundHeader, RoundReason
from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.server.rpc.convert.checks import require
from rallypoint.server.rpc.convert.exits import Ends, to_exits
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import node_pb2, round_pb2
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.wire.durations import to_ms

_STATES = {
    node_pb2.NODE_STATE_ASSIGNED: NodeState.ASSIGNED,
    node_pb2.NODE_STATE_STARTED: NodeState.STARTED,
    node_pb2.NODE_STATE_SUCCEEDED: NodeState.SUCCEEDED,
    node_pb2.NODE_STATE_FAILED: NodeState.FAILED,
    node_pb2.NODE_STATE_STOPPING: NodeState.UNREADY,
    node_pb2.NODE_STATE_BLOCKED: NodeState.BLOCKED,
}
_REASONS = {
    round_pb2.ROUND_REASON_FIRST: RoundReason.FIRST,
    round_pb2.ROUND_REASON_WORKER_FAILED: RoundReason.WORKER_FAILED,
    round_pb2.ROUND_REASON_NODE_LOST: RoundReason.NODE_LOST,
    round_pb2.ROUND_REASON_NODE_LEFT: RoundReason.NODE_LEFT,
    round_pb2.ROUND_REASON_GROWTH: RoundReason.GROWTH,
    round_pb2.ROUND_REASON_START_OVERDUE: RoundReason.START_OVERDUE,
    round_pb2.ROUND_REASON_DRAINED: RoundReason.DRAINED,
    round_pb2.ROUND_REASON_RESTART_REQUESTED: RoundReason.RESTART_REQUESTED,
    round_pb2.ROUND_REASON_RESIZED: RoundReason.RESIZED,
}
"""Reasons for which a round can begin. Any other is kept as unknown: it is only echoed."""
_MILESTONES = {
    worker_pb2.MILESTONE_IMPORTED: Milestone.IMPORTED,
    worker_pb2.MILESTONE_PROCESS_GROUP: Milestone.PROCESS_GROUP,
}


def to_milestones(
    reached: Iterable[worker_pb2.MilestoneReached],
) -> tuple[tuple[Milestone, int], ...]:
    """Return milestones, each with how long ago it was reached, in ms.

    Those that only a newer agent or worker knows are left out.
    """
    return tuple(
        (_MILESTONES[one.milestone], to_ms(one.age))
        for one in reached
        if one.milestone in _MILESTONES
    )


def to_held_round(hello: agent_pb2.Hello) -> HeldRound:
    """Return the round that an agent says it holds."""
    path, held = "hello.held", hello.held
    order = held.order
    _require_fit(order, hello, f"{path}.order")
    exited = [worker for worker in held.workers if worker.HasField("exit")]
    exits = to_exits(exited, f"{path}.workers", order.assignment.local_world_size, Ends.ANY)
    return HeldRound(
        header=_header(order.header),
        assignment=_assignment(order.assignment),
        state=_state(held, exits),
        pids=tuple(worker.pid for worker in held.workers),
        exits=exits,
        start_failure=held.start_failure,
        worker_token=order.worker_token,
        milestones=to_milestones(held.milestones),
    )


def _state(held: agent_pb2.HeldRound, exits: Sequence[WorkerExit]) -> NodeState:
    """Return the state of a node; a state that is unknown here follows from the workers."""
    known = _STATES.get(held.state)
    if known is not None:
        return known
    is_newer = held.state not in node_pb2.NodeState.values()
    require(is_newer, "hello.held.state", "is not a valid state for a held round")
    if any(exit.is_failure for exit in exits) or held.HasField("start_failure"):
        return NodeState.FAILED
    are_started = bool(held.workers) and all(worker.pid for worker in held.workers)
    return NodeState.STARTED if are_started else NodeState.ASSIGNED


def _require_fit(order: agent_pb2.RunOrder, hello: agent_pb2.Hello, path: str) -> None:
    """Refuse a round that the job cannot have had, or a place in it that the node cannot have."""
    header, assignment = order.header, order.assignment
    nodes, workers = header.group_world_size, assignment.local_world_size
    # An operator may have allowed more nodes than the agent's own specification does.
    is_possible = nodes <= header.world_size
    require(is_possible, f"{path}.header.group_world_size", "does not fit the world size")
    problem = f"is not the agent's, {hello.local_world_size}"
    fits = workers == hello.local_world_size
    require(fits, f"{path}.assignment.local_world_size", problem)
    fits = assignment.group_rank < nodes and assignment.first_rank + workers <= header.world_size
    require(fits, f"{path}.assignment", "does not fit into the round")


def _header(header: round_pb2.RoundHeader) -> RoundHeader:
    return RoundHeader(
        number=header.number,
        run=header.run,
        world_size=header.world_size,
        group_world_size=header.group_world_size,
        master_addr=header.master_addr,
        master_port=header.master_port,
        restart_count=header.restart_count,
        reason=_REASONS.get(header.reason, RoundReason.UNKNOWN),
        epoch=header.epoch,
    )


def _assignment(assignment: round_pb2.Assignment) -> Assignment:
    return Assignment(
        group_rank=assignment.group_rank,
        first_rank=assignment.first_rank,
        local_world_size=assignment.local_world_size,
        role=assignment.role,
        first_role_rank=assignment.first_role_rank,
        role_world_size=assignment.role_world_size,
    )
