"""Which node has which rank."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest

from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.model.round import Member
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.rounds.ranks import (
    assign_ranks,
    choose_members,
    is_gapless,
    natural_key,
    slots_of,
)
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, identity

SEEDS = range(300)


def make_node(
    name: str, arrival: int, *, rank: int | None = None, workers: int = 1, role: str = "default"
) -> Node:
    known = identity(
        name, JobSpec(), session=arrival + 1, node_rank=rank, workers=workers, role=role
    )
    return Node(known, known.name, arrival, connection=1)


def choose(candidates: Sequence[Node], slots: Sequence[str] = (), max_nodes: int = 99) -> list[str]:
    chosen = choose_members(
        candidates, slots=[NodeName(name) for name in slots], max_nodes=max_nodes
    )
    return [str(node.name) for node in chosen]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["node66", "node7", "node100"], ["node7", "node66", "node100"]),
        (["b", "a"], ["a", "b"]),
        (["a10b2", "a10b10", "a9b99"], ["a9b99", "a10b2", "a10b10"]),
        (["7", "a", "66"], ["7", "66", "a"]),
        (["n07", "n7", "n8"], ["n07", "n7", "n8"]),
        (["node", "node1"], ["node", "node1"]),
    ],
)
def test_natural_order(names: list[str], expected: list[str]) -> None:
    """Digits in names are ordered by their value."""
    assert expected == sorted(names, key=natural_key)


@pytest.mark.parametrize(
    ("claim", "nodes", "expected"),
    [
        ("natural order, not arrival", [("n10", None), ("n9", None)], ["n9", "n10"]),
        ("an explicit rank outranks the name", [("a", None), ("b", 0)], ["b", "a"]),
        ("unset is not 0", [("b", None), ("a", 1)], ["b", "a"]),
        ("all explicit", [("a", 2), ("b", 0), ("c", 1)], ["b", "c", "a"]),
        ("an explicit rank is a place", [("c", 1), ("b", None), ("a", None)], ["a", "c", "b"]),
        ("one beyond the round comes first", [("b", None), ("c", 7)], ["c", "b"]),
    ],
)
def test_first_round_order(
    claim: str, nodes: list[tuple[str, int | None]], expected: list[str]
) -> None:
    """A first round is ordered by explicit rank, then by name."""
    candidates = [make_node(name, n, rank=rank) for n, (name, rank) in enumerate(nodes)]

    assert expected == choose(candidates), claim


@pytest.mark.parametrize(
    ("claim", "slots", "names", "max_nodes", "expected"),
    [
        ("survivors keep their slots", "abc", "cba", 3, "abc"),
        ("a spare fills the hole", "abc", "caz", 3, "azc"),
        ("holes are closed up", "abcd", "db", 4, "bd"),
        ("the rest follows", "ab", "bayz", 4, "abyz"),
        ("the earliest spares are taken", "abc", "aczxy", 3, "azc"),
        ("chosen spares are ordered by name", "abc", "azy", 3, "ayz"),
        ("an adopted hole is filled", ["a", "", "c"], "cax", 3, "axc"),
        ("no node of the old round", "ab", "yx", 2, "xy"),
    ],
)
def test_later_round_order(
    claim: str, slots: Sequence[str], names: str, max_nodes: int, expected: str
) -> None:
    """Later rounds keep slots, fill holes with spares, and close up the rest."""
    candidates = [make_node(name, arrival) for arrival, name in enumerate(names)]

    assert list(expected) == choose(candidates, slots, max_nodes), claim


def test_spare_with_an_explicit_rank_waits_for_its_hole() -> None:
    """A spare that has an explicit rank fills that hole; others are passed to spares without."""
    candidates = [
        make_node("b", 0),
        make_node("x", 1, rank=2),
        make_node("y", 2),
    ]

    assert ["y", "b", "x"] == choose(candidates, ["a", "b", "c"], 3)


def test_ranks_are_prefix_sums() -> None:
    """Global and role ranks are prefix sums over nodes with different workers and roles."""
    nodes = [
        make_node("a", 0, workers=2, role="trainer"),
        make_node("b", 1, workers=3, role="reader"),
        make_node("c", 2, workers=1, role="trainer"),
    ]

    places = [member.assignment for member in assign_ranks(nodes)]

    assert [(0, 0, 2, 0, 3), (1, 2, 3, 0, 3), (2, 5, 1, 2, 3)] == [
        (
            place.group_rank,
            place.first_rank,
            place.local_world_size,
            place.first_role_rank,
            place.role_world_size,
        )
        for place in places
    ]


def test_gaps_are_found() -> None:
    """A set of members is gapless only if it is whole and in order."""
    members = assign_ranks([make_node(name, n, workers=2) for n, name in enumerate("abc")])

    assert [True, False, False, False] == [
        is_gapless(members, 6),
        is_gapless(members, 7),
        is_gapless(members[:1] + members[2:], 6),
        is_gapless(members[::-1], 6),
    ]
    assert ("a", "", "c") == slots_of((members[0], members[2]), 3)


# A second implementation of the rules, written to be obvious and not to be fast.


def dumb_key(name: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part), part) if part.isdigit() else (1, 0, part) for part in parts]


def dumb_choice(candidates: list[Node], slots: list[str], max_nodes: int) -> list[Node]:
    def order(node: Node) -> tuple[object, ...]:
        rank = node.identity.node_rank
        return (10**9 if rank is None else rank, dumb_key(node.name), node.arrival)

    if not slots:
        waiting = sorted(candidates, key=order)[:max_nodes]
        size = len(waiting)
        table: dict[int, Node] = {}
        for node in list(waiting):
            rank = node.identity.node_rank
            if rank is not None and rank < size:
                table[rank] = node
                waiting.remove(node)
        for place in range(size):
            if place not in table:
                table[place] = waiting.pop(0)
        return [table[place] for place in range(size)]
    old = [node for node in candidates if node.name in slots]
    new = sorted((node for node in candidates if node not in old), key=lambda n: n.arrival)
    new = sorted(new[: max_nodes - len(old)], key=order)
    result = []
    for place, name in enumerate(slots):
        owner = [node for node in old if node.name == name]
        if not owner and new:
            exact = [node for node in new if node.identity.node_rank == place]
            free = [node for node in new if node.identity.node_rank is None]
            owner = [(exact + free + new)[0]]
            new.remove(owner[0])
        result += owner
    return result + new


def dumb_ranks(nodes: Sequence[Node]) -> list[tuple[int, int, int]]:
    """Return (first rank, first role rank, role world size) per node by counting every worker."""
    workers = [node for node in nodes for _ in range(node.identity.local_world_size)]
    roles = [worker.identity.role for worker in workers]
    places = []
    for node in nodes:
        first = workers.index(node)
        role = node.identity.role
        places.append((first, roles[:first].count(role), roles.count(role)))
    return places


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_against_a_second_implementation(seed: int) -> None:
    """Whatever the nodes, slots and limits: both implementations agree, and ranks are 0..n-1."""
    chance = random.Random(seed)
    names = chance.sample([f"{word}{n}" for word in ("n", "node", "") for n in range(12)], 14)
    count, max_nodes = chance.randint(1, 9), chance.randint(1, 9)
    ranks = chance.sample(range(12), count)
    candidates = [
        make_node(
            name,
            arrival,
            rank=ranks[arrival] if chance.random() < 0.4 else None,
            workers=chance.randint(1, 4),
            role=chance.choice(("trainer", "reader")),
        )
        for arrival, name in enumerate(chance.sample(names, count))
    ]
    slots = chance.sample(names, chance.randint(0, max_nodes)) if chance.random() < 0.7 else []

    chosen = choose_members(
        candidates, slots=[NodeName(name) for name in slots], max_nodes=max_nodes
    )
    members = assign_ranks(chosen)

    assert dumb_choice(candidates, slots, max_nodes) == list(chosen)
    assert min(count, max_nodes) == len(set(chosen))
    assert dumb_ranks(chosen) == [
        (place.first_rank, place.first_role_rank, place.role_world_size)
        for place in (member.assignment for member in members)
    ]
    assert list(range(sum(node.identity.local_world_size for node in chosen))) == all_ranks(members)


def all_ranks(members: Sequence[Member]) -> list[int]:
    return [
        place.first_rank + local_rank
        for place in (member.assignment for member in members)
        for local_rank in range(place.local_world_size)
    ]


# The same rules as nodes see them.


def places(*agents: FakeAgent) -> list[int | None]:
    return [agent.group_rank for agent in agents]


def test_survivors_keep_their_ranks_when_a_spare_fills_the_hole() -> None:
    """After a loss the spare has the place of the lost node, and no other place changes."""
    bench = Bench(JobSpec(min_nodes=3, max_nodes=3))
    a, b, c = bench.run_round("a", "b", "c")
    (spare,) = bench.join("z")
    assert [0, 1, 2, None] == places(a, b, c, spare)

    b.goodbye()
    bench.obey()

    assert [0, 2, 1] == places(a, c, spare)


def test_holes_are_closed_up_without_a_spare() -> None:
    """After a loss without a spare the survivors keep their order."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3))
    a, b, c = bench.run_round("a", "b", "c")

    a.goodbye()
    bench.obey()

    assert [0, 1] == places(b, c)
    assert b.identity.address == bench.rounds()[-1].master_addr


def test_returner_keeps_its_slot() -> None:
    """A node that comes back under its name before the next round has its old place again."""
    bench = Bench(JobSpec(min_nodes=3, max_nodes=3))
    a, b, c = bench.run_round("a", "b", "c")
    b.goodbye()
    bench.obey()

    (again,) = bench.join("b")

    assert [0, 1, 2] == places(a, again, c)


def test_master_is_the_first_node_with_the_port_it_offered() -> None:
    """The master endpoint is the address of group rank 0 and the port of its latest Ready."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2, max_restarts=1))
    a, b = bench.run_round("a", "b")
    first = bench.rounds()[-1]
    b.fail()
    bench.obey()

    second = bench.rounds()[-1]

    assert (a.identity.address, a.port) == (second.master_addr, second.master_port)
    assert first.master_port != second.master_port
