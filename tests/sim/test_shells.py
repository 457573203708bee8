"""The real shells of coordinator and agents under faults, on virtual time.

`run.py --world shells` runs more seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from sim.seeds import campaign
from sim.shells.culprits import CulpritWorld
from sim.shells.seed import run_seed
from support.tries.commit import choose_seeds

FEW = choose_seeds("shells", 39)
MANY = choose_seeds("more shells", 240, after=13)
TIMELY = (
    "FailuresAreCharged",
    "FailuresArePushed",
    "LossesArePushed",
    "OutcomeIsPushed",
    "StartsTogether",
)
"""Rules that hold only while nothing else goes wrong."""


def check_seeds(seeds: Iterable[int], **what: Any) -> Counter[str]:
    """Run seeds; fail with the first that fails; return how often what happened."""
    world = "culprits" if what.get("kind") is CulpritWorld else "shells"
    return campaign.check_seeds(partial(run_seed, **what), seeds, f" --world {world}").counts


def test_every_seed_comes_to_rest() -> None:
    """Whatever goes wrong, no rule is broken, and every process ends with nothing left undone."""
    events = check_seeds(FEW)

    assert events["coordinator"] > len(FEW)
    assert events["joined"] > len(FEW)
    assert events["disk"] > 0


@pytest.mark.parametrize("is_durable", [None, True])
def test_first_failure_is_named(is_durable: bool | None) -> None:
    """The verdict names it although its agent stands still or its report waits, or a coordinator
    with a journal dies between the two; none is lost."""
    events = check_seeds(FEW, kind=CulpritWorld, is_durable=is_durable)

    assert events["rule TrueCulprit"] > len(FEW)
    assert events["log worker_news_dropped"] == 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_seeds_come_to_rest() -> None:
    """The same of more seeds, in which every rule about time was applied."""
    events = check_seeds(MANY)

    assert all(events[f"rule {name}"] for name in TIMELY)


@pytest.mark.parametrize("seed", [2, 33])
def test_seed_is_a_history(seed: int) -> None:
    """The same seed gives the same history."""
    first, second = run_seed(seed, is_traced=True), run_seed(seed, is_traced=True)

    assert first.trace == second.trace
    assert (first.digest, first.steps) == (second.digest, second.steps)


def test_seeds_differ() -> None:
    """Different seeds give different histories."""
    assert len({run_seed(seed).digest for seed in range(5)}) == 5
