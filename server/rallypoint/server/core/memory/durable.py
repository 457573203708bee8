"""What a coordinator remembers of a job and of a node when it starts again.

The rest is volatile, as the structs say: see `model.volatile`.
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any

from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields, replace

from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.model.round import Round
from rallypoint.server.core.model.volatile import volatile_fields


def default_of(info: FieldInfo) -> Any:
    """Return the default of a field; NODEFAULT when it has none."""
    if info.default_factory is not NODEFAULT:
        return info.default_factory()
    return info.default


@cache
def _forgotten(kind: Any) -> dict[str, Any]:
    """Return the defaults of the volatile fields of a struct, by name."""
    volatile = volatile_fields(kind)
    return {info.name: default_of(info) for info in fields(kind) if info.name in volatile}


def durable_job(job: Job) -> Job:
    """Return the job with its volatile facts at their defaults."""
    round = None if job.round is None else durable_round(job.round)
    return replace(job, **_forgotten(Job), round=round)


def durable_round(round: Round) -> Round:
    """Return the round with its volatile facts at their defaults."""
    return replace(round, **_forgotten(Round))


def durable_node(node: Node) -> Node:
    """Return the node with its volatile facts at their defaults."""
    return replace(node, **_forgotten(Node), state=_durable_state(node))


def _durable_state(node: Node) -> NodeState:
    """Return SUCCEEDED while it is a member, BLOCKED, or UNREADY for any other."""
    state = node.state
    if state is NodeState.BLOCKED or (state is NodeState.SUCCEEDED and node.member):
        return state
    return NodeState.UNREADY


def is_durably_equal(one: Node, other: Node) -> bool:
    """Return whether the durable facts of two nodes are the same."""
    is_same: bool = _FACTS(one) == _FACTS(other)
    return is_same and _durable_state(one) is _durable_state(other)


_FACTS = attrgetter(*sorted(set(Node.__struct_fields__) - volatile_fields(Node) - {"state"}))
