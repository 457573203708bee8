"""Compares what the nodes of a job run.

Two programs in one world usually mean that two people chose the same job id. So nodes of one role
run the same program. Three kinds of nodes are compared with nothing: one whose operator allows
other programs beside it, one whose program has no name, such as a script on standard input, and one
that does not say what it runs. All others of a role have the same program, so a newcomer is
compared with the first of them.

Only nodes that the job has now count. A script that was corrected and renamed may follow one that
has left.
"""

from __future__ import annotations

from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.node import Identity, Node
from rallypoint.server.core.state.draft import Draft


def check_program(draft: Draft, identity: Identity) -> Refusal | None:
    """Refuse another program than that of the job's nodes with the same role."""
    if _compared_name(identity) == "":
        return None
    for other in draft.nodes_of(identity.job_id):
        if _is_replaced(other, identity):
            continue
        if other.identity.role == identity.role and _compared_name(other.identity):
            return compare_programs(identity, other.name, other.identity)
    return None


def _is_replaced(other: Node, identity: Identity) -> bool:
    """Return whether a node whose stream broke makes way for the new one."""
    if other.attached:
        return False
    has_name = identity.name_explicit and other.name == identity.name
    has_rank = identity.node_rank is not None and other.identity.node_rank == identity.node_rank
    return has_name or has_rank


def compare_programs(identity: Identity, other_name: NodeName, other: Identity) -> Refusal | None:
    """Return the refusal of a node beside another one; None if both may be in one job."""
    own_program, other_program = _compared_name(identity), _compared_name(other)
    if not own_program or not other_program or own_program == other_program:
        return None
    if identity.role != other.role:
        return None
    facts = (
        ("job_id", identity.job_id),
        ("node_name", identity.name),
        ("program", own_program),
        ("other_node_name", other_name),
        ("other_program", other_program),
    )
    return Refusal(RefusalKind.PROGRAM_MISMATCH, facts)


def find_other_arguments(draft: Draft, node: Node) -> NodeName | None:
    """Return the first node before this one with its role and program, if its arguments differ."""
    program = node.identity.program
    if program is None or not program.name:
        return None
    for other in draft.nodes_of(node.job_id):
        if other.session == node.session:
            return None
        theirs = other.identity.program
        is_alike = theirs is not None and theirs.name == program.name
        if is_alike and other.identity.role == node.identity.role:
            assert theirs is not None
            has_same = theirs.arguments_digest == program.arguments_digest
            return None if has_same else other.name
    return None


def _compared_name(identity: Identity) -> str:
    """Return the name of a node's program, or "" if it is compared with nothing."""
    program = identity.program
    return "" if program is None or program.may_differ else program.name
