"""Both cores under faults, on a virtual clock; `run.py` runs more seeds."""

from __future__ import annotations

import pytest

from sim.bugs import BUGS, planted
from sim.campaign import Summary, run_seed, run_seeds
from sim.coverage import EXPECTED
from sim.run import commit

SEEDS = range(600)
PROCESSORS = 2
HUNT = range(600)
"""Seeds within which a planted bug has to be noticed."""
MOST_TRANSITIONS = 48
"""Of those in `coverage.EXPECTED`; the rare ones take more seeds than there is time for here."""


def test_every_seed_is_safe_and_comes_to_rest() -> None:
    """Whatever goes wrong, no rule is broken, and when it stops every job runs or ends."""
    summary = Summary()
    for result in run_seeds(SEEDS, PROCESSORS):
        summary.add(result)
        if result.failure:
            pytest.fail(
                f"seed {result.seed} at commit {commit()} failed {result.failure}\n"
                f"reproduce: python tests/sim/run.py --seeds {result.seed} --trace",
                pytrace=False,
            )

    reached = [key for key in EXPECTED if summary.coverage.counts[key]]
    assert len(reached) >= MOST_TRANSITIONS, f"not reached: {summary.coverage.missing()}"


@pytest.mark.parametrize("seed", [1, 36, 122])
def test_seed_is_a_history(seed: int) -> None:
    """The same seed gives the same history, step by step."""
    first, second = run_seed(seed, is_traced=True), run_seed(seed, is_traced=True)

    assert first.trace == second.trace
    assert (first.digest, first.steps) == (second.digest, second.steps)


def test_seeds_differ() -> None:
    """Different seeds give different histories."""
    digests = {run_seed(seed).digest for seed in range(5)}

    assert len(digests) == 5


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_noticed(name: str) -> None:
    """The rule that a bug breaks notices it within a few seeds."""
    with planted(name):
        caught = next((result for seed in HUNT if (result := run_seed(seed)).failure), None)

    assert caught is not None, f"nobody noticed within {len(HUNT)} seeds"
    assert caught.rule in BUGS[name][1], caught.failure
