"""Follows the waiting to its end: which ranks all others wait for, directly or through others.

A rank that is behind in one group may itself wait in another one. With several kinds of
parallelism that is the rule: rank 9 waits for rank 1 in one group, and rank 1 for rank 3 in
another. What counts is where such a chain ends:

* at a *root*: a rank that others wait for, and that itself waits for no other that is known;
* in a collective that all members have entered: then no rank is behind, and the cause is a mismatch
  of what they have entered, or below them: the network or a device;
* nowhere: ranks wait for each other in different groups. If the cycles would all end without one
  rank, and fewer wait with it than with any other such rank, then that rank is set apart: it has
  gone into a collective that the others do not enter.

Ranks and waits are the nodes of one graph: a rank points to the waits that it waits in, and a wait
to the ranks that are behind it. A rank whose progress is not known points to none, so it needs no
edge. The edges are linear in the ranks, although each rank may wait for all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from rallypoint.server.core.evidence.waits import Wait

CANDIDATES_MAX = 8
"""Longest cycle, in ranks, of which each rank is tried. A longer one has no culprit."""

_Graph = Mapping[int, Sequence[int]]
"""What each node points to. A rank is its number, and the wait at position p is -1 - p."""


class Chains(Struct, frozen=True):
    """Where the waiting of all ranks ends."""

    roots: tuple[tuple[int, tuple[int, ...]], ...]
    """Position of each wait that roots are behind, and these roots, ascending."""
    unseen_roots: tuple[tuple[int, tuple[int, ...]], ...]
    """The same for roots whose progress is not known: they may have entered it."""
    cycle: tuple[int, ...]
    """Ranks that wait for each other, ascending; empty: none do."""
    intruder: int | None
    """The rank among them that has gone into another collective than the others, if there is
    one."""


def follow(waits: Sequence[Wait]) -> Chains:
    """Return where the waiting ends."""
    graph = _build_graph(waits)
    roots = tuple(_keep_roots(at, wait.behind, graph) for at, wait in enumerate(waits))
    unseen = tuple(_keep_roots(at, wait.unseen, graph) for at, wait in enumerate(waits))
    turned = _turn(graph)
    looped = _find_looped(graph, turned)
    knot = {node: [target for target in graph[node] if target in looped] for node in sorted(looped)}
    cycle = _find_looped(_turn(knot), knot)
    return Chains(
        roots=tuple((at, ranks) for at, ranks in roots if ranks),
        unseen_roots=tuple((at, ranks) for at, ranks in unseen if ranks),
        cycle=tuple(sorted(node for node in cycle if node >= 0)),
        intruder=_find_intruder(waits, knot) if knot else None,
    )


def _build_graph(waits: Sequence[Wait]) -> dict[int, list[int]]:
    graph: dict[int, list[int]] = {}
    for at, wait in enumerate(waits):
        targets = graph[-1 - at] = list(wait.behind)
        if wait.below is not None:
            targets.append(-1 - wait.below)
        if wait.is_outrun or wait.is_alone:
            continue  # no rank is known that its ranks wait for
        for rank in wait.ranks:
            graph.setdefault(rank, []).append(-1 - at)
    return graph


def _keep_roots(at: int, ranks: Iterable[int], graph: _Graph) -> tuple[int, tuple[int, ...]]:
    return at, tuple(rank for rank in ranks if rank not in graph)


def _find_looped(graph: _Graph, turned: _Graph, without: int | None = None) -> set[int]:
    """Return the nodes from which a cycle can be reached.

    Source: A. B. Kahn, Topological sorting of large networks, 1962.

    Args:
        graph: what each node points to.
        turned: the same with all edges reversed.
        without: node that counts as one that points to no other.
    """
    left = {node: len(targets) for node, targets in graph.items() if node != without}
    ended = [node for node in turned if node not in left]
    ended += [node for node, count in left.items() if count == 0]
    while ended:
        for source in turned.get(ended.pop(), ()):
            if source in left:
                left[source] -= 1
                if left[source] == 0:
                    ended.append(source)
    return {node for node, count in left.items() if count > 0}


def _turn(graph: _Graph) -> dict[int, list[int]]:
    """Return the graph with all edges reversed."""
    turned: dict[int, list[int]] = {}
    for node, targets in graph.items():
        for target in targets:
            turned.setdefault(target, []).append(node)
    return turned


def _find_intruder(waits: Sequence[Wait], knot: _Graph) -> int | None:
    """Return the one rank that is set apart among those that wait for each other.

    Args:
        waits: all of them.
        knot: the nodes from which a cycle can be reached, and their edges to each other.
    """
    candidates = [node for node in _find_cycle(knot) if node >= 0]
    if len(candidates) > CANDIDATES_MAX:
        return None
    turned = _turn(knot)
    breaking = [rank for rank in candidates if not _find_looped(knot, turned, without=rank)]
    company = {rank: max(len(waits[-1 - wait].ranks) for wait in knot[rank]) for rank in breaking}
    fewest = min(company.values(), default=0)
    loneliest = [rank for rank in breaking if company[rank] == fewest]
    return loneliest[0] if len(loneliest) == 1 else None


def _find_cycle(knot: _Graph) -> list[int]:
    """Return the nodes of one cycle. Each node of the knot points to another one of it."""
    node = min(rank for rank in knot if rank >= 0)
    path: dict[int, int] = {}
    while node not in path:
        path[node] = len(path)
        node = min(knot[node])
    return list(path)[path[node] :]
