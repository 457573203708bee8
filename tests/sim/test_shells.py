"""The real shells of coordinator and agents under faults, on virtual time.

`shells/run.py` runs more seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from sim.run import commit
from sim.shells.run import run_seed, run_seeds

FEW = range(40)
MANY = range(1_000)
PROCESSORS = 2
TIMELY = ("FailuresAreCharged", "FailuresArePushed", "OutcomeIsPushed", "StartsTogether")
"""Rules that hold only while nothing else goes wrong."""


def check_seeds(seeds: Iterable[int], processors: int = 1) -> Counter[str]:
    """Run seeds; fail with the first that fails; return how often what happened."""
    events: Counter[str] = Counter()
    for result in run_seeds(seeds, processors):
        events.update(result.events)
        if result.rule:
            pytest.fail(
                f"seed {result.seed} at commit {commit()} failed {result.rule}: {result.failure}\n"
                f"reproduce: python tests/sim/shells/run.py --seeds {result.seed} --trace",
                pytrace=False,
            )
    return events


def test_every_seed_comes_to_rest() -> None:
    """Whatever goes wrong, no rule is broken, and every process ends with nothing left undone."""
    events = check_seeds(FEW)

    assert events["coordinator"] > len(FEW)
    assert events["joined"] > len(FEW)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_seeds_come_to_rest() -> None:
    """The same of more seeds, in which every rule about time was applied."""
    events = check_seeds(MANY, PROCESSORS)

    assert all(events[f"rule {name}"] for name in TIMELY)


@pytest.mark.parametrize("seed", [2, 33])
def test_seed_is_a_history(seed: int) -> None:
    """The same seed gives the same history."""
    first, second = run_seed(seed, is_traced=True), run_seed(seed, is_traced=True)

    assert first.trace == second.trace
    assert (first.digest, first.turns) == (second.digest, second.turns)


def test_seeds_differ() -> None:
    """Different seeds give different histories."""
    assert len({run_seed(seed).digest for seed in range(5)}) == 5
