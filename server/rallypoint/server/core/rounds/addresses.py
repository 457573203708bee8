"""Decides which address of the first node the workers of a round get.

A node guesses its address: no one has reached it there. But if the coordinator is on its host, the
other nodes have reached that host, each at an address that it knows. Where all of them agree on an
address of that host that is not the node's guess, theirs counts: it has been tried. An address that
the host does not have is that of a proxy, of a service or of a router, behind which the port of
rank 0 may not be. Nodes that disagree, or of which it is unknown how they came, change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from msgspec import Struct

from rallypoint.server.core.model.node import Node

REACHED_MAX = 16
"""Addresses that a line of the log names."""


class MasterAddress(Struct, frozen=True):
    """The address of rank 0, and where the other nodes have reached its host."""

    address: str
    reached_at: tuple[str, ...] = ()
    """Sorted, at most REACHED_MAX. Empty: unknown, or all have reached it at the node's own."""


def choose_master_address(first: Node, others: Iterable[Node]) -> MasterAddress:
    """Return the address at which workers reach rank 0.

    Args:
        first: the node of rank 0.
        others: the other members of its round.
    """
    own = first.identity.address
    if not first.known_addresses.own:
        return MasterAddress(own)
    elsewhere = [node.known_addresses for node in others if not node.known_addresses.own]
    known = [frozenset(node.of_coordinator) for node in elsewhere if node.of_coordinator]
    if all(own in addresses for addresses in known):
        return MasterAddress(own)
    reached = frozenset().union(*known)
    reached_at = tuple(sorted(reached)[:REACHED_MAX])
    if own in reached or len(known) < len(elsewhere):
        return MasterAddress(own, reached_at)
    common = reduce(frozenset.intersection, known).intersection(first.known_addresses.own)
    # Of a name with addresses of both families, any may be the one that was tried. Scripts that put
    # the address into a URL may know one family only.
    fitting = [one for one in common if (":" in one) == (":" in own)] or list(common)
    return MasterAddress(fitting[0] if len(fitting) == 1 else own, reached_at)
