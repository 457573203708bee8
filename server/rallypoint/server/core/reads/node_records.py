"""What the records of a job mean for the membership of its nodes; see `job_records`."""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.server.core.messages.records import (
    NodeSucceeded,
    RoundSealed,
    RoundSettled,
    RunClosed,
)
from rallypoint.server.core.model.ids import NodeName, SessionId
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.round import Assignment
from rallypoint.server.core.reads.durable import NodeFacts

NodeRecord = RoundSealed | RoundSettled | RunClosed | NodeSucceeded
"""The records that change durable facts of nodes without naming these facts."""
Places = Mapping[NodeName, Assignment]


def places_of(record: NodeRecord) -> Places:
    """Return the places that a record gives to nodes, by name."""
    if not isinstance(record, RoundSealed):
        return {}
    return {member.name: member.assignment for member in record.members}


def apply_node_record(
    facts: NodeFacts, name: NodeName, session: SessionId, record: NodeRecord, places: Places
) -> NodeFacts:
    """Return the facts of a node after a record of its job.

    Args:
        facts: as they were.
        name: the node's name.
        session: the node's session.
        record: of the node's job.
        places: of the same record, from `places_of`.
    """
    match record:
        case RoundSealed(header=header):
            if name not in places:
                return facts
            return facts._replace(state=NodeState.UNREADY, member=True, last_round=header.number)
        case NodeSucceeded():
            return facts._replace(state=NodeState.SUCCEEDED) if record.session == session else facts
        case RoundSettled() | RunClosed():
            if not facts.member:
                return facts
            is_blocked = facts.state is NodeState.BLOCKED
            state = NodeState.BLOCKED if is_blocked else NodeState.UNREADY
            return facts._replace(state=state, member=False)
