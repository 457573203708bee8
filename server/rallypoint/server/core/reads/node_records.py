"""What the records of a job mean for the membership of its nodes; see `job_records`."""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.server.core.messages.records import RoundSealed, RoundSettled, RunClosed
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.round import Assignment
from rallypoint.server.core.reads.durable import NodeFacts

NodeRecord = RoundSealed | RoundSettled | RunClosed
"""The records that change durable facts of all nodes of a job, or of many."""
Places = Mapping[NodeName, Assignment]


def places_of(record: NodeRecord) -> Places:
    """Return the places that a record gives to nodes, by name."""
    if not isinstance(record, RoundSealed):
        return {}
    return {member.name: member.assignment for member in record.members}


def after_success(facts: NodeFacts) -> NodeFacts:
    """Return the facts of a member once all of its workers have ended with 0."""
    return facts._replace(state=NodeState.SUCCEEDED)


def apply_node_record(
    facts: NodeFacts, name: NodeName, record: NodeRecord, places: Places
) -> NodeFacts:
    """Return the facts of a node after a record of its job.

    Args:
        facts: as they were.
        name: the node's name.
        record: of the node's job.
        places: of the same record, from `places_of`.
    """
    match record:
        case RoundSealed(header=header):
            if name not in places:
                return facts
            return facts._replace(state=NodeState.UNREADY, member=True, last_round=header.number)
        case RoundSettled() | RunClosed():
            if not facts.member:
                return facts
            is_blocked = facts.state is NodeState.BLOCKED
            state = NodeState.BLOCKED if is_blocked else NodeState.UNREADY
            return facts._replace(state=state, member=False)
