"""What a coordinator remembers of a job and of a node when it starts again.

The rest is volatile: agents report it again with their Hello, or it is only a wait that begins
again. It is not journalled, so a Ready, a Started, a heartbeat and an exit after a stop cost no
record.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from rallypoint.server.core.model.desired import Drain
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.network import NetworkSuspicion
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.model.round import Assignment, Reached, Round


def durable_job(job: Job) -> Job:
    """Return the job with its volatile facts at their defaults."""
    round = job.round
    return replace(
        job,
        first_ready_ms=None,
        last_arrival_ms=0,
        first_newcomer_ms=None,
        breaks=NetworkSuspicion(),
        round=None if round is None else _durable_round(round),
    )


def _durable_round(round: Round) -> Round:
    return replace(
        round,
        notices_sent=(),
        unlisted_departures=0,
        step=0,
        step_ms=None,
        step_gap_ms=None,
        reached_at=(),
        last_exit_ms=None,
        imported=Reached(),
        process_group=Reached(),
    )


class NodeFacts(NamedTuple):
    """The durable facts of a node that may change."""

    state: NodeState
    """SUCCEEDED while it is a member, BLOCKED, or UNREADY for any other."""
    member: bool
    last_round: int
    set_aside: bool
    blocked_round: int
    drain: Drain | None
    missed_ms: int | None


def facts_of(node: Node) -> NodeFacts:
    """Return the durable facts of a node that may change."""
    state = node.state
    if state is not NodeState.BLOCKED and not (state is NodeState.SUCCEEDED and node.member):
        state = NodeState.UNREADY
    return NodeFacts(
        state,
        node.member,
        node.last_round,
        node.set_aside,
        node.blocked_round,
        node.drain,
        node.missed_ms,
    )


def with_facts(node: Node, facts: NodeFacts, place: Assignment | None) -> Node:
    """Return a durable node with other facts; `place` is that of a member."""
    return replace(
        node,
        state=facts.state,
        member=facts.member,
        assignment=place if facts.member else None,
        last_round=facts.last_round,
        set_aside=facts.set_aside,
        blocked_round=facts.blocked_round,
        drain=facts.drain,
        missed_ms=facts.missed_ms,
    )


def durable_node(node: Node) -> Node:
    """Return the node with its volatile facts at their defaults."""
    bare = Node(node.identity, node.name, node.arrival, connection=0, is_newcomer=node.is_newcomer)
    return with_facts(bare, facts_of(node), node.assignment)


def has_same_identity(one: Node, other: Node) -> bool:
    """Return whether two nodes of one session differ only in facts that may change."""
    return (
        (one.identity is other.identity or one.identity == other.identity)
        and one.name == other.name
        and one.arrival == other.arrival
        and one.is_newcomer == other.is_newcomer
    )
