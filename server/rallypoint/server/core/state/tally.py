"""Counts of a job's nodes, updated by difference, so no decision looks at every node."""

from __future__ import annotations

from typing import NamedTuple

from rallypoint.server.core.model.node import Eligibility, Node, NodeState


class Tally(NamedTuple):
    """Counts of a job's nodes. Every field is a sum over the nodes."""

    nodes: int = 0
    away: int = 0
    """Nodes with a broken stream, within the grace period."""
    eligible: int = 0
    """Nodes that are attached, READY and not kept out."""
    reserve: int = 0
    """Quarantined nodes that would be eligible otherwise."""
    members: int = 0
    pending: int = 0
    """Members that a stop has to wait for."""
    unstarted: int = 0
    """Members that were assigned and have not started."""
    succeeded: int = 0
    """Members that have succeeded."""
    newcomers: int = 0
    """Eligible nodes that are not members."""
    draining: int = 0
    """Members that drain."""
    staying: int = 0
    """Members that the next round may include: they neither drain nor are cordoned."""
    moving: int = 0
    """Attached members that have not succeeded and whose workers make progress."""
    unknown: int = 0
    """Members that are not attached and have not succeeded."""

    @property
    def available(self) -> int:
        """How many nodes the next round can have if the running one stops now."""
        return self.staying + self.newcomers + self.reserve

    def placeable(self, min_nodes: int) -> int:
        """Return how many nodes a round can have; the reserve counts only up to `min_nodes`."""
        return max(self.eligible, min(self.eligible + self.reserve, min_nodes))

    def plus(self, other: Tally, sign: int) -> Tally:
        """Return this tally with another one added (sign 1) or subtracted (sign -1)."""
        return Tally(
            self.nodes + sign * other.nodes,
            self.away + sign * other.away,
            self.eligible + sign * other.eligible,
            self.reserve + sign * other.reserve,
            self.members + sign * other.members,
            self.pending + sign * other.pending,
            self.unstarted + sign * other.unstarted,
            self.succeeded + sign * other.succeeded,
            self.newcomers + sign * other.newcomers,
            self.draining + sign * other.draining,
            self.staying + sign * other.staying,
            self.moving + sign * other.moving,
            self.unknown + sign * other.unknown,
        )


class TallyKey(NamedTuple):
    """The facts of a node that its tally depends on."""

    attached: bool
    state: NodeState
    member: bool
    set_aside: bool
    eligibility: Eligibility
    drains: bool
    is_still: bool


def tally_key_of(node: Node) -> TallyKey:
    """Return the facts of a node that its tally depends on."""
    return TallyKey(
        node.attached,
        node.state,
        node.member,
        node.set_aside,
        node.eligibility,
        node.drain is not None,
        node.still_since_ms is not None,
    )


_tallies: dict[TallyKey, Tally] = {}
_differences: dict[tuple[TallyKey, TallyKey], Tally] = {}
"""Computed once for each of the few keys and pairs of keys that exist. Measured for 1,024
nodes that change at once: 1.9 ms with them, 5.1 ms without."""


def tally_of(node: Node) -> Tally:
    """Return the contribution of one node to its job's tally."""
    key = tally_key_of(node)
    tally = _tallies.get(key)
    if tally is None:
        tally = _tallies[key] = _compute_tally(node)
    return tally


def _compute_tally(node: Node) -> Tally:
    works = node.member and node.state is not NodeState.SUCCEEDED
    return Tally(
        nodes=1,
        away=not node.attached,
        eligible=node.is_eligible,
        reserve=node.is_reserve,
        members=node.member,
        pending=node.is_pending,
        unstarted=node.member and node.state is NodeState.ASSIGNED,
        succeeded=node.member and node.state is NodeState.SUCCEEDED,
        newcomers=node.is_eligible and not node.member,
        draining=node.member and node.drain is not None,
        staying=node.member and node.drain is None and node.eligibility is not Eligibility.CORDONED,
        moving=works and node.attached and node.still_since_ms is None,
        unknown=works and not node.attached,
    )


def difference(old: Node, new: Node) -> Tally | None:
    """Return the change of the tally when `old` becomes `new`, or None for no change."""
    if (
        old.state is new.state
        and old.member == new.member
        and old.attached == new.attached
        and old.set_aside == new.set_aside
        and old.eligibility is new.eligibility
        and (old.drain is None) == (new.drain is None)
        and (old.still_since_ms is None) == (new.still_since_ms is None)
    ):
        return None  # most changes of a node are no change of its key
    was, now = tally_key_of(old), tally_key_of(new)
    gain = _differences.get((was, now))
    if gain is None:
        gain = _differences[was, now] = tally_of(new).plus(tally_of(old), -1)
    return gain
