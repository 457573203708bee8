"""The real relays between the real shells of coordinator and agents, under faults, on virtual time.

`run.py --world relays` runs more seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

import pytest

from sim.relays.world import RelayedWorld
from sim.seeds import campaign
from sim.shells.seed import run_seed
from support.tries.commit import choose_seeds

FEW = choose_seeds("relays", 30)
MANY = choose_seeds("more relays", 100, after=10)
run = partial(run_seed, kind=RelayedWorld)


def check_seeds(seeds: Iterable[int]) -> Counter[str]:
    """Run seeds; fail with the first that fails; return how often what happened."""
    return campaign.check_seeds(run, seeds, " --world relays").counts


def test_every_seed_comes_to_rest() -> None:
    """Relays die, stand still and are cut off: no rule is broken, and nothing is left undone."""
    events = check_seeds(FEW)

    assert events["relay"] > 2 * len(FEW)
    assert events["log relay_connected"] > 2 * len(FEW)
    assert events["joined"] > len(FEW)


@pytest.mark.long
def test_many_seeds_come_to_rest() -> None:
    """The same of more seeds, in which relays that stand still were noticed."""
    events = check_seeds(MANY)

    assert events["log relay_timed_out"] > 0


def test_seed_is_a_history() -> None:
    """The same seed gives the same history."""
    first, second = run(7, is_traced=True), run(7, is_traced=True)

    assert first.trace == second.trace
