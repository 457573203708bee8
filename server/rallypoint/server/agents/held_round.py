"""The round that an agent holds, in its Hello."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rallypoint.server.agents.exits import AllowedExits, to_exits
from rallypoint.server.contract.calls import require
from rallypoint.server.contract.mappers import ASSIGNMENT, HEADER, MILESTONES, STATES
from rallypoint.server.core.model.node import HeldRound, NodeState
from rallypoint.server.core.model.round import Milestone
from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import node_pb2
from rallypoint.wire.durations import to_ms

_STATES = {
    **{STATES[one]: one for one in NodeState if one not in (NodeState.UNREADY, NodeState.READY)},
    node_pb2.NODE_STATE_STOPPING: NodeState.UNREADY,
}
_MILESTONES = {number: one for one, number in MILESTONES.items()}


def to_milestones(
    reached: Iterable[agent_pb2.MilestoneReached],
) -> tuple[tuple[Milestone, int], ...]:
    """Return milestones, each with how long ago it was reached, in ms.

    Those that only a newer agent or worker knows are left out.
    """
    return tuple(
        (_MILESTONES[one.milestone], to_ms(one.age))
        for one in reached
        if one.milestone in _MILESTONES
    )


def to_still_ms(message: agent_pb2.HeldRound | agent_pb2.Progress) -> int | None:
    """Return the time since the latest progress on a node, in ms; None: there is progress."""
    return to_ms(message.still_for) if message.HasField("still_for") else None


def to_held_round(hello: agent_pb2.Hello) -> HeldRound:
    """Return the round that an agent says it holds."""
    path, held = "hello.held", hello.held
    order = held.order
    _require_fit(order, hello, f"{path}.order")
    exited = [worker for worker in held.workers if worker.HasField("exit")]
    exits = to_exits(exited, f"{path}.workers", order.assignment.local_world_size, AllowedExits.ANY)
    return HeldRound(
        header=HEADER.to_struct(order.header),
        assignment=ASSIGNMENT.to_struct(order.assignment),
        state=_state(held, exits),
        pids=tuple(worker.pid for worker in held.workers),
        exits=exits,
        start_failure=held.start_failure,
        worker_token=order.worker_token,
        milestones=to_milestones(held.milestones),
        still_ms=to_still_ms(held),
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
