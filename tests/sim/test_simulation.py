"""Both cores under faults, on a virtual clock; `run.py` runs more seeds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from rallypoint.server.core.state import State
from sim.bugs import BUGS, planted
from sim.campaign import Summary, run_seed, run_seeds
from sim.coverage import EVERY, EXPECTED, UNREACHABLE
from sim.faults import Fault, Feature, draw_faults
from sim.run import commit

SEEDS = range(600)
PROCESSORS = 2
HUNT = range(600)
"""Seeds within which a planted bug has to be noticed."""
MOST_TRANSITIONS = 255
"""Of those in `coverage.EXPECTED`; the rare ones take more seeds than there is time for here."""


def test_every_seed_is_safe_and_comes_to_rest() -> None:
    """Whatever goes wrong, no rule is broken, and when it stops every job runs or ends."""
    summary = Summary()
    for result in run_seeds(SEEDS, PROCESSORS):
        summary.add(result)
        if result.failure:
            pytest.fail(
                f"seed {result.seed} at commit {commit()} failed {result.failure}\n"
                f"with {result.options}\n"
                f"reproduce: python tests/sim/run.py --seeds {result.seed} --trace",
                pytrace=False,
            )

    assert not [row for row in UNREACHABLE if summary.coverage.counts[row]]
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


def test_stalls_spare_jobs_with_leases_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short a lease: while all that goes wrong are stalls, no worker is stopped.

    It is the longer time to return that does it: with a lease for it, one is.
    """
    options = {"kinds": "stall", "features": "own_lease"}
    assert [] == [found.failure for seed in range(60) if (found := run_seed(seed, options)).failure]

    monkeypatch.setattr(State, "return_ms", State.lease_ms)
    rules = {run_seed(seed, options).rule for seed in range(60)}
    assert "WorkersDoNotNotice" in rules


def test_options_of_a_seed_can_be_set() -> None:
    """What is set by name holds for the seed, and the rest is what it drew; a typo is refused."""
    drawn = run_seed(3).options

    found = run_seed(3, {"kinds": "crash,partition", "nodes_max": "3"}).options

    assert found == replace(drawn, kinds=(Fault.CRASH, Fault.PARTITION), nodes_max=3)
    with pytest.raises(ValueError, match="no fault earthquake"):
        run_seed(3, {"kinds": "earthquake"})
    with pytest.raises(ValueError, match="no option weather"):
        run_seed(3, {"weather": "1"})


def test_seeds_are_a_swarm() -> None:
    """Each kind of fault and each feature is on in some seeds and off in others."""
    drawn = [draw_faults(Random(seed)) for seed in range(100)]

    for kind in Fault:
        assert 20 < sum(kind in options.kinds for options in drawn) < 80, kind
    for feature in Feature:
        assert 20 < sum(feature in options.features for options in drawn) < 80, feature


def test_every_exempt_row_is_a_row() -> None:
    """Nothing is excused that is not in a table: a renamed row does not stay excused unseen."""
    assert not set(UNREACHABLE) - set(EVERY)
