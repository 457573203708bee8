"""The real shells of coordinator and agents under faults, on virtual time.

`shells/run.py` runs more seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

import pytest

from sim.run import commit
from sim.shells.bugs import BUGS, planted
from sim.shells.culprits import CulpritWorld
from sim.shells.run import run_seed, run_seeds
from sim.shells.world import World
from support.tries.commit import choose_long, choose_seeds

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
NOTICED = {
    "forget to wake the writer": (6, "StartsTogether"),
    "forget to wake the link": (18, "FailuresArePushed"),
    "act before hearing": (1, "Liveness"),
    "ignore stalls": (32, "NobodyIsLost"),
    "forget the connection": (32, "NobodyIsLost"),
    "send reports twice": (181, "ConnectionsLast"),
    "forget reports of a broken stream": (39, "ConnectionsLast"),
    "answer without hearing": (5, "NobodyIsLost"),
    "drop the rest": (80, "ConnectionsLast"),
    "close the newer outbox": (3, "Liveness"),
    "keep the broken stream secret": (31, "LossesArePushed"),
    "lose nested inputs": (15, "Liveness"),
    "forget the sweep of a lost helper": (17, "Liveness"),
    "start a stopped round": (194, "NumbersGrow"),
    "leave everything to the helper": (1378, "FenceHolds"),
    "wait for a frozen helper": (4, "Liveness"),
    "let sweeps overtake exits": (6, "TrueCulprit"),
    "date exits when seen": (0, "TrueCulprit"),
    "forget exits in a hello": (1, "TrueCulprit"),
    "date exits in their turn": (1, "TrueCulprit"),
    "act before writing": (6, "Liveness"),
    "act without writing": (2, "Liveness"),
    "await no one": (6, "NobodyIsLost"),
    "believe the wall clock": (23, "WaitsStand"),
}
"""A seed that notices each planted bug, and the rule that the bug breaks there. To find another one
after a change of what seeds draw, plant the bug and run seeds until one fails."""
DURABLE = frozenset(
    {
        "act before writing",
        "act without writing",
        "await no one",
        "believe the wall clock",
        "forget exits in a hello",
        "date exits in their turn",
    }
)
"""Bugs of durable coordinators; the others are planted where the coordinator has no memory."""
OF_CULPRITS = frozenset(
    {
        "let sweeps overtake exits",
        "date exits when seen",
        "forget exits in a hello",
        "date exits in their turn",
    }
)
"""Bugs that cost the verdict its truth: they are planted where only that can go wrong."""


def check_seeds(seeds: Iterable[int]) -> Counter[str]:
    """Run seeds; fail with the first that fails; return how often what happened.

    In this process: one that has called gRPC may not fork, and other tests run beside this one.
    """
    events: Counter[str] = Counter()
    for result in run_seeds(seeds, 1):
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
    assert events["disk"] > 0


@pytest.mark.parametrize("is_durable", [None, True])
def test_first_failure_is_named(is_durable: bool | None) -> None:
    """The verdict names it although its agent stands still or its report waits, or a coordinator
    with a journal dies between the two; none is lost."""
    events: Counter[str] = Counter()
    run = partial(run_seed, kind=CulpritWorld, is_durable=is_durable)
    for result in run_seeds(FEW, 1, run=run):
        events.update(result.events)
        assert result.rule == "", f"seed {result.seed}: {result.failure}"

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
    assert (first.digest, first.turns) == (second.digest, second.turns)


def test_seeds_differ() -> None:
    """Different seeds give different histories."""
    assert len({run_seed(seed).digest for seed in range(5)}) == 5


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=choose_long("bugs of shells", at, 6))
        for at, name in enumerate(BUGS)
    ],
)
def test_planted_bug_is_noticed(name: str) -> None:
    """A seed that passes without the bug fails with it."""
    seed, rule = NOTICED[name]
    kind = CulpritWorld if name in OF_CULPRITS else World
    run = partial(run_seed, seed, is_durable=name in DURABLE, kind=kind)
    sound = run()
    with planted(name):
        found = run()

    assert sound.rule == "", sound.failure
    assert found.rule == rule, found.failure
