"""Plans of members: alone, and in every order against each other (hypothesis)."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.server.fleet.planner import Plan, compute_quotas, plan

MEMBERS = ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("me", "members", "owners", "count", "expected"),
    [
        ("a", "a", {}, 3, Plan(claims=(0, 1, 2))),
        ("a", "ab", {}, 4, Plan(claims=(0, 2))),
        ("b", "ab", {}, 4, Plan(claims=(1, 3))),
        ("a", "ab", {0: "a", 1: "a", 2: "b"}, 3, Plan()),
        ("b", "ab", {0: "a", 1: "a", 2: "b"}, 3, Plan()),
        ("a", "ab", {0: "a", 1: "a", 2: "a", 3: "a"}, 4, Plan(releases=(0,))),
        ("a", "ab", {1: "a", 2: "a", 3: "a"}, 4, Plan()),
        ("b", "ab", {1: "a", 2: "a", 3: "a"}, 4, Plan(claims=(0,))),
        ("a", "b", {0: "a", 1: "b"}, 3, Plan(releases=(0,))),
        ("a", "a", {0: "gone"}, 2, Plan(claims=(1,))),
    ],
)
def test_plan(me: str, members: str, owners: dict[int, str], count: int, expected: Plan) -> None:
    """Shares are equal, what has no owner is claimed, one at a time is released."""
    assert expected == plan(me, set(members), owners, count, {})


@pytest.mark.parametrize(
    ("me", "owners", "refused", "expected"),
    [
        # b lacks most, and cannot serve 0 and 1.
        ("a", {2: "a", 3: "a"}, {"b": (0, 1)}, Plan(claims=(0, 1))),
        ("b", {2: "a", 3: "a"}, {"b": (0, 1)}, Plan()),
        ("b", {2: "a", 3: "a"}, {"b": (0,)}, Plan(claims=(1,))),
        ("a", {2: "a", 3: "a"}, {"b": (0,)}, Plan(claims=(0,))),
        # What no member can serve is tried again.
        ("b", {2: "a", 3: "a"}, {"a": (0, 1), "b": (0, 1)}, Plan(claims=(0, 1))),
        # Nothing is released for a member that would refuse it.
        ("a", dict.fromkeys(range(4), "a"), {"b": (0, 1)}, Plan(releases=(2,))),
        ("a", dict.fromkeys(range(4), "a"), {"b": (0, 1, 2, 3)}, Plan()),
    ],
)
def test_refused_shards_are_for_the_others(
    me: str, owners: dict[int, str], refused: dict[str, tuple[int, ...]], expected: Plan
) -> None:
    """An older version cannot read them."""
    assert expected == plan(me, {"a", "b"}, owners, 4, {}, refused)


def test_lightest_shards_move_first() -> None:
    """A shard without a job costs nothing to move."""
    owners = dict.fromkeys(range(16), "a")
    loads = {shard: 5 for shard in range(16)} | {7: 0, 9: 1}

    assert plan("a", {"a", "b"}, owners, 16, loads).releases == (7, 9)


def test_few_shards_are_on_the_way() -> None:
    """An eighth of all: their agents connect again, the others notice nothing."""
    owners = dict.fromkeys(range(2, 32), "a")

    assert plan("a", {"a", "b"}, owners, 32, {}).releases == (2, 3)
    del owners[2], owners[3]
    assert plan("a", {"a", "b"}, owners, 32, {}).releases == ()


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[str], dict[int, str], int]:
    """Members that take part, owners that may be others, and the number of shards."""
    count = draw(st.integers(1, 24))
    members = sorted(draw(st.sets(st.sampled_from(MEMBERS), min_size=1)))
    one = st.one_of(st.none(), st.sampled_from((*MEMBERS, "gone")))
    drawn = {shard: draw(one) for shard in range(count)}
    return members, {shard: owner for shard, owner in drawn.items() if owner}, count


@settings(deadline=None)
@given(situations())
def test_no_two_members_plan_to_own_a_shard(
    situation: tuple[list[str], dict[int, str], int],
) -> None:
    """From the same view: every claim has one member, and only a member's own is released."""
    members, owners, count = situation
    plans = {member: plan(member, members, owners, count, {}) for member in MEMBERS}
    claims = Counter(shard for one in plans.values() for shard in one.claims)

    assert set(range(count)) - owners.keys() == set(claims)
    assert {1} >= set(claims.values())
    for member, one in plans.items():
        assert all(owners[shard] == member for shard in one.releases)
        assert member in members or not one.claims


@settings(max_examples=50, deadline=None)
@given(situations(), st.randoms(use_true_random=False), st.booleans())
def test_every_order_converges(
    situation: tuple[list[str], dict[int, str], int], random: Random, is_late: bool
) -> None:
    """Members plan one after another, in any order; with new views as few shards move as can be."""
    members, owners, count = situation
    owners = {shard: owner for shard, owner in owners.items() if owner != "gone"}
    quotas = compute_quotas(members, Counter(owners.values()), count)
    excess = sum(max(0, n - quotas.get(owner, 0)) for owner, n in Counter(owners.values()).items())
    views = {member: dict(owners) for member in MEMBERS}
    moves = quiet = 0
    while quiet < 4 * len(MEMBERS):
        for member in random.sample(MEMBERS, len(MEMBERS)):
            view = views[member] if is_late else owners
            one = plan(member, members, view, count, {})
            views[member] = dict(owners)  # a watch is late, and comes
            quiet = 0 if one != Plan() else quiet + 1
            for shard in one.claims:
                owners.setdefault(shard, member)  # etcd lets one succeed
            for shard in one.releases:
                if owners.get(shard) == member:
                    del owners[shard]
                    moves += 1
    shares = Counter(owners.values())

    assert count == len(owners)
    assert set(shares) <= set(members)
    assert max(shares[member] for member in members) - min(shares[m] for m in members) <= 1
    assert is_late or moves == excess


@settings(deadline=None)
@given(situations())
def test_quotas_move_as_little_as_possible(
    situation: tuple[list[str], dict[int, str], int],
) -> None:
    """Compared with every way to share equally."""
    members, owners, count = situation
    held = Counter(owners.values())
    base, more = divmod(count, len(members))
    quotas = compute_quotas(members, held, count)

    def kept(given: dict[str, int]) -> int:
        return sum(min(held[member], quota) for member, quota in given.items())

    best = max(
        kept({member: base + (at < more) for at, member in enumerate(order)})
        for order in permutations(members)
    )
    assert kept(quotas) == best
    assert sum(quotas.values()) == count
