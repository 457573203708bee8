"""Chooses the nodes of a round, their order and their ranks.

First round: explicit node ranks, then the natural order of names (node7 before node66), then order
of arrival. Later rounds: a node that had a slot keeps it; a node without one takes the lowest slot
that was left empty; slots that stay empty are removed. Ranks are prefix sums over the nodes in that
order, so nodes may have different numbers of workers and different roles.
"""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.model.round import Assignment, Member


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that orders digits in names by their value: n7, n66, n100."""
    parts: list[tuple[int, int, str]] = []
    run = ""
    for char in name + "\0":
        if run and (char.isdecimal() != run[-1].isdecimal() or char == "\0"):
            parts.append((0, int(run), run) if run[0].isdecimal() else (1, 0, run))
            run = ""
        run += char
    return tuple(parts)


def choose_members(
    candidates: Sequence[Node], *, slots: Sequence[NodeName], max_nodes: int
) -> tuple[Node, ...]:
    """Choose and order the nodes of a round.

    Args:
        candidates: eligible nodes with unique names, in order of arrival.
        slots: names by group rank of the previous round; empty for a first round.
        max_nodes: most nodes to choose, 1 or more.

    Returns:
        The members by group rank, 0 first; at most `max_nodes`.
    """
    if not slots:
        return _place_first(sorted(candidates, key=_first_order)[:max_nodes])
    by_name = {node.name: node for node in candidates}
    kept = [by_name.pop(name) for name in slots if name in by_name][:max_nodes]
    newcomers = sorted(by_name.values(), key=lambda node: node.arrival)
    newcomers = sorted(newcomers[: max_nodes - len(kept)], key=_first_order)
    kept_names = {node.name: node for node in kept}
    order = [kept_names.get(name) for name in slots]
    for position, occupant in enumerate(order):
        if occupant is None and newcomers:
            order[position] = _pop_newcomer_for(position, newcomers)
    return tuple(node for node in order if node is not None) + tuple(newcomers)


def _first_order(node: Node) -> tuple[object, ...]:
    rank = node.identity.node_rank
    return (rank is None, rank or 0, natural_key(node.name), node.arrival)


def _place_first(ordered: Sequence[Node]) -> tuple[Node, ...]:
    """Put every node with an explicit rank at that position if the round is large enough."""
    places: list[Node | None] = [None] * len(ordered)
    others: list[Node] = []
    for node in ordered:
        rank = node.identity.node_rank
        if rank is not None and rank < len(places):
            places[rank] = node
        else:
            others.append(node)
    rest = iter(others)
    return tuple(node if node is not None else next(rest) for node in places)


def _pop_newcomer_for(position: int, newcomers: list[Node]) -> Node:
    """Remove and return the newcomer with this explicit rank, else the first one without a rank."""
    for node in newcomers:
        if node.identity.node_rank == position:
            newcomers.remove(node)
            return node
    for node in newcomers:
        if node.identity.node_rank is None:
            newcomers.remove(node)
            return node
    return newcomers.pop(0)


def is_gapless(members: Sequence[Member], world_size: int) -> bool:
    """Return whether the members, in order, have the ranks 0..world_size-1, each exactly once."""
    rank = 0
    for member in members:
        if member.assignment.first_rank != rank:
            return False
        rank += member.assignment.local_world_size
    return rank == world_size


def slots_of(members: Sequence[Member], group_world_size: int) -> tuple[NodeName, ...]:
    """Return names by group rank, "" for a hole, which only an adopted round can have."""
    slots = [NodeName("")] * group_world_size
    for member in members:
        slots[member.assignment.group_rank] = member.name
    return tuple(slots)


def assign_ranks(nodes: Sequence[Node]) -> tuple[Member, ...]:
    """Assign ranks to the nodes.

    Args:
        nodes: the members in order of their group rank.

    Returns:
        One member per node in the same order. Global ranks are 0..world-1, each exactly once;
        within a role, role ranks are 0..role world-1, each exactly once.
    """
    role_world: dict[str, int] = {}
    for node in nodes:
        identity = node.identity
        role_world[identity.role] = role_world.get(identity.role, 0) + identity.local_world_size
    members: list[Member] = []
    rank = 0
    role_rank = dict.fromkeys(role_world, 0)
    for group_rank, node in enumerate(nodes):
        identity = node.identity
        members.append(
            Member(
                node.name,
                Assignment(
                    group_rank=group_rank,
                    first_rank=rank,
                    local_world_size=identity.local_world_size,
                    role=identity.role,
                    first_role_rank=role_rank[identity.role],
                    role_world_size=role_world[identity.role],
                ),
            )
        )
        rank += identity.local_world_size
        role_rank[identity.role] += identity.local_world_size
    return tuple(members)
