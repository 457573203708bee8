"""The real relays between the real shells of coordinator and agents, under faults, on virtual time.

`shells/run.py --relays` runs more seeds.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest

from sim.relays.bugs import BUGS, planted
from sim.relays.world import RelayedWorld
from sim.run import commit
from sim.shells.run import Result, run_seed, run_seeds
from support.tries.commit import choose_long, choose_seeds

FEW = choose_seeds("relays", 30)
MANY = choose_seeds("more relays", 100, after=10)
NOTICED = {
    "take a lost relay for lost agents": (562, "NobodyIsLost"),
    "forget to wake the writer": (12, "OutcomeIsPushed"),
    "forget to wake the uplink": (12, "StartsTogether"),
    "refresh the leases of neighbours": (26, "Liveness"),
    "keep the end of an agent secret": (20, "SeatsAreStreams"),
    "drop the ends of streams": (27, "SeatsAreStreams"),
    "end all when one leaves": (12, "ConnectionsLast"),
    "keep the agents of a lost coordinator": (29, "SeatsAreStreams"),
    "take a lost agent for a lost relay": (37, "LossesArePushed"),
    "number every stream alike": (1, "ConnectionsLast"),
}
"""A seed that notices each planted bug, and the rule that the bug breaks there. To find another one
after a change of what seeds draw, plant the bug and run seeds until one fails."""
run = partial(run_seed, kind=RelayedWorld)


def check_seeds(seeds: Iterable[int]) -> list[Result]:
    """Run seeds; fail with the first that fails."""
    results = list(run_seeds(seeds, 1, run))
    for result in results:
        if result.rule:
            pytest.fail(
                f"seed {result.seed} at commit {commit()} failed {result.rule}: {result.failure}\n"
                f"reproduce: python tests/sim/shells/run.py --relays --seeds {result.seed} --trace",
                pytrace=False,
            )
    return results


def test_every_seed_comes_to_rest() -> None:
    """Relays die, stand still and are cut off: no rule is broken, and nothing is left undone."""
    results = check_seeds(FEW)

    assert sum(result.events["relay"] for result in results) > 2 * len(FEW)
    assert sum(result.events["log relay_connected"] for result in results) > 2 * len(FEW)
    assert sum(result.events["joined"] for result in results) > len(FEW)


@pytest.mark.long
def test_many_seeds_come_to_rest() -> None:
    """The same of more seeds, in which relays that stand still were noticed."""
    results = check_seeds(MANY)

    assert sum(result.events["log relay_timed_out"] for result in results) > 0


def test_seed_is_a_history() -> None:
    """The same seed gives the same history."""
    first, second = run(7, is_traced=True), run(7, is_traced=True)

    assert first.trace == second.trace


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=choose_long("bugs of relays", at, 6))
        for at, name in enumerate(BUGS)
    ],
)
def test_planted_bug_is_noticed(name: str) -> None:
    """A seed that passes without the bug fails with it."""
    seed, rule = NOTICED[name]
    sound = run(seed, is_durable=False)
    with planted(name):
        found = run(seed, is_durable=False)

    assert sound.rule == "", sound.failure
    assert found.rule == rule, found.failure
