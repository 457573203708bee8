"""Planted bugs: a rule notices each of them. `replant.py` finds the seeds that do."""

from __future__ import annotations

import pytest

from sim.replant import BUGS, HUNT, RUN, choose_seeds, hunt, read_noticed
from support.tries.commit import choose_long


@pytest.mark.parametrize(
    ("world", "name"),
    [
        pytest.param(world, name, marks=choose_long(f"bugs of {world}", at, 6))
        for world, bugs in BUGS.items()
        for at, name in enumerate(bugs)
    ],
)
def test_planted_bug_is_noticed(world: str, name: str) -> None:
    """The rule that a bug breaks notices it within a few seeds; the seed passes without it."""
    caught = hunt(world, name, choose_seeds(read_noticed()[world].get(name, 0)))

    assert caught is not None, f"no rule noticed it within {len(HUNT)} seeds: make replant"
    assert caught.rule in BUGS[world][name][1], f"{caught.failure}: make replant"
    assert RUN[world](name, caught.seed).failure == ""


def test_seeds_are_known_of_bugs_alone() -> None:
    """A bug that is gone leaves no seed behind."""
    noticed = read_noticed()

    assert noticed.keys() == BUGS.keys()
    for world, seeds in noticed.items():
        assert seeds.keys() <= BUGS[world].keys()
