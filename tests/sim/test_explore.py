"""Small worlds explored whole; `explore.py` explores larger ones."""

from __future__ import annotations

import pytest

from sim.explore import describe
from sim.seeds.bugs import BUGS
from sim.seeds.planting import planted
from sim.small.search import Search
from sim.small.small import Bounds, Mishap
from support.tries.commit import choose_long

WHOLE = {
    "one node, one mishap": Bounds(nodes=1, min_nodes=1, depth=60, is_running=True),
    "two nodes, all goes well": Bounds(depth=60, faults=0),
    "a late node joins": Bounds(min_nodes=1, late=1, depth=28, faults=0),
    "two nodes, one mishap": Bounds(depth=8, is_running=True),
    "a node drains": Bounds(
        min_nodes=1, drain_ms=2_000, depth=9, is_running=True, kinds=frozenset({Mishap.DRAIN})
    ),
    "one node, however it leaves": Bounds(
        nodes=1, min_nodes=1, drain_ms=2_000, depth=60, is_running=True
    ),
    "two nodes, fenced, one falls silent": Bounds(
        min_nodes=1, fence_ms=4_000, depth=15, is_running=True, kinds=frozenset({Mishap.SILENCE})
    ),
    "three nodes, a worker fails": Bounds(
        nodes=3, min_nodes=2, depth=10, is_running=True, kinds=frozenset({Mishap.FAIL})
    ),
}

LARGE = frozenset(
    {
        "two nodes, one mishap",
        "two nodes, fenced, one falls silent",
        "three nodes, a worker fails",
    }
)
"""Worlds that take long."""

HUNTS = {
    "forget to check the connection": Bounds(is_running=True),
    "start a round twice": Bounds(is_running=True),
    "go back to an older epoch": Bounds(is_running=True),
    "forget the notes of nodes": Bounds(is_running=True),
    "succeed early": Bounds(depth=30, faults=0),
    "tell two outcomes": Bounds(depth=30, faults=0),
    "give ranks twice": Bounds(nodes=3, min_nodes=3, workers=(1, 2, 1), faults=0),
    "count a prompted exit as success": Bounds(min_nodes=1, late=1, depth=30, faults=0),
    "overdraw the budget": Bounds(
        nodes=1, min_nodes=1, depth=30, faults=2, is_running=True, kinds=frozenset({Mishap.FAIL})
    ),
    "call a node clean too early": Bounds(
        depth=20, is_running=True, kinds=frozenset({Mishap.FAIL})
    ),
    "forget to fence": Bounds(
        min_nodes=1, fence_ms=4_000, is_running=True, kinds=frozenset({Mishap.SILENCE})
    ),
    "judge a node by a stale lease": Bounds(
        min_nodes=1, fence_ms=9_000, is_running=True, kinds=frozenset({Mishap.SILENCE})
    ),
    "adopt an incomplete round": Bounds(
        min_nodes=1,
        faults=2,
        is_running=True,
        kinds=frozenset({Mishap.CRASH, Mishap.CRASH_AGENT}),
    ),
    "settle a round that still runs": Bounds(min_nodes=1, is_running=True),
    "wait for ever for a node": Bounds(
        is_running=True, depth=20, kinds=frozenset({Mishap.CRASH_AGENT})
    ),
    "reuse a round number": Bounds(depth=30, max_restarts=3, kinds=frozenset({Mishap.NO_START})),
}
"""Where each bug shows: the small world that is explored for it."""


@pytest.mark.timeout(1_500)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=choose_long("worlds", at, 2) if name in LARGE else ())
        for at, name in enumerate(WHOLE)
    ],
)
def test_small_world_is_safe_in_every_order(name: str) -> None:
    """No order of messages and no instant of a mishap breaks a rule or leaves an agent waiting."""
    found = Search(WHOLE[name]).run()

    assert not found.rule, "\n".join((*found.trace, describe(found)))
    assert found.is_whole, describe(found)


def test_exploration_is_the_same_every_time() -> None:
    """The same bounds give the same states and the same moves."""
    first, second = (Search(Bounds(depth=6, is_running=True)).run() for _ in range(2))

    assert (first.states, first.transitions) == (second.states, second.transitions)
    assert first.states > 500


def test_orders_that_make_no_difference_meet_again() -> None:
    """Independent moves lead to one state in either order: far fewer states than transitions."""
    found = Search(Bounds(depth=60, faults=0)).run()

    assert found.is_exhausted and found.final > 0
    assert found.transitions > 1.5 * found.states


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=choose_long("hunts", at, 6)) for at, name in enumerate(HUNTS)],
)
def test_exploration_notices_a_planted_bug(name: str) -> None:
    """The shortest way to a planted bug is found, and the rule that it breaks is named."""
    with planted(BUGS[name]):
        found = Search(HUNTS[name]).run()

    assert found.rule in BUGS[name][1], describe(found)
    assert found.trace
