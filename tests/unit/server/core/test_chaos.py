"""Random lives of a job: everything that may happen, in any order, and then peace."""

from __future__ import annotations

import pytest

from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.deadlines import DeadlineKind
from support.recovery.lives import World
from support.tries.commit import choose_seeds

FEW = choose_seeds("lives", 15)
MORE = choose_seeds("more lives", 35, after=5)
LONG = pytest.mark.long


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
@pytest.mark.parametrize("seed", [*FEW, *(pytest.param(s, marks=LONG) for s in MORE)])
def test_safe_in_chaos_and_at_rest_in_peace(seed: int, *, durable: bool) -> None:
    """Whatever happens no invariant breaks, and when the faults stop the job comes to rest."""
    world = World(seed, durable=durable)
    for _ in range(120):
        world.misfortune()

    world.peace()

    world.check_rest()
    world.bench.check_journal()
    due = [key for key, _ in world.bench.state.deadlines.items()]
    assert all(key[0] is not DeadlineKind.GRACE for key in due), "a node is between two states"


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
@pytest.mark.parametrize("seed", choose_seeds("deaths of the coordinator", 15))
def test_no_worker_is_restarted_when_only_the_coordinator_dies(seed: int, *, durable: bool) -> None:
    """However often the coordinator dies, the running round continues once all agents are back."""
    world = World(seed, durable=durable)
    for _ in range(world.spec.max_nodes):
        world.spawn()
    world.peace()
    before = [life.given for life in world.alive]
    assert all(before)

    for _ in range(3):
        world.replace_coordinator()
        world.chance.shuffle(world.lives)
        for life in world.alive:
            world.bench.advance(world.chance.randint(0, 400))
            world.go_on(life)
        world.bench.advance(3_000)
        for life in world.alive:
            world.go_on(life)

    assert before == [life.given for life in world.alive]
    assert all(life.state is NodeState.STARTED for life in world.alive)
    assert Phase.RUNNING is world.bench.job().phase
