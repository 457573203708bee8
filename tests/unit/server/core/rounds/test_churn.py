"""A hundred random failures of a large job: 32 nodes, four spares, and ranks that do not move.

Workers fail, agents die (alone or two at once) and come back under their name, or are replaced
under another. After every round a few lines that know nothing of the core's rules compare the ranks
with those of the round before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from rallypoint.server.core.model.desired import DesiredRun, DesiredStop
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent

MEMBERS, SPARES, MIN_NODES = 32, 4, 26
WORKERS_EACH = 2
FEW, FAILURES = 30, 100
SPEC = JobSpec(
    min_nodes=MIN_NODES,
    max_nodes=MEMBERS,
    max_restarts=FAILURES,
    max_reformations=2 * FAILURES,
    crash_loop=0,
    quarantine_after=0,
    restart_backoff_ms=0,
    settle_time_ms=0,
    grow_after_ms=0,
)
RECONNECT_MS = 500
RETURN_SHARE = 0.3
"""Of the dead nodes, after every failure: so few that the spares are all in use now and then."""
Places = dict[str, int]


@dataclass
class Churn:
    """The job, and the orders that its nodes got."""

    bench: Bench
    chance: random.Random
    agents: dict[str, FakeAgent] = field(default_factory=dict)
    """Living agents by node name."""
    away: list[str] = field(default_factory=list)
    """Names of dead agents that will come back."""
    charged: int = 0
    """Failures that must have been charged: counted here, not by the core."""
    born: int = 0
    kept: int = 0
    """Rounds in which spares filled every hole."""
    moved: int = 0
    """Rounds for which there were too few nodes, or more than in the round before."""

    def join(self, name: str) -> None:
        (self.agents[name],) = self.bench.join(name, workers=WORKERS_EACH)

    def replace(self) -> None:
        """Add a node with an unused name."""
        self.born += 1
        self.join(f"new{self.born}")

    def places(self) -> Places:
        """Return the first rank of every node that has a Run, by name; check the rest."""
        runs = {
            name: agent.desired
            for name, agent in self.agents.items()
            if isinstance(agent.desired, DesiredRun)
        }
        places: Places = {}
        ranks: list[int] = []
        for name, run in runs.items():
            assignment = run.assignment
            places[name] = assignment.first_rank
            ranks += range(places[name], places[name] + assignment.local_world_size)

        assert sorted(ranks) == list(range(len(runs) * WORKERS_EACH)), "ranks: each exactly once"
        assert {run.header.world_size for run in runs.values()} == {len(ranks)}
        assert {run.header.restart_count for run in runs.values()} == {self.charged}
        assert len({run.header for run in runs.values()}) == 1
        return places

    def fail_worker(self) -> None:
        """Let a worker of a member fail; peers that fail because of it cost nothing."""
        members = [agent for agent in self.agents.values() if agent.group_rank is not None]
        for agent in self.chance.sample(members, self.chance.randint(1, 3)):
            agent.fail()
        self.charged += 1

    def kill_agents(self) -> None:
        """Let one or two agents die without a word, members or spares."""
        for name in self.chance.sample(sorted(self.agents), self.chance.randint(1, 2)):
            agent = self.agents.pop(name)
            agent.beats = False
            agent.break_off()
            self.away.append(name)
        self.bench.advance(RECONNECT_MS)

    def return_some(self) -> None:
        """Let some of the dead come back, under their names or replaced under new ones."""
        for name in [name for name in self.away if self.chance.random() < RETURN_SHARE]:
            self.away.remove(name)
            if self.chance.random() < 0.5:
                self.join(name)
            else:
                self.replace()

    def settle(self, before: Places) -> Places:
        """Let the job form its next round if it has to; compare it with the round before."""
        spares = len(self.agents) - len(before.keys() & self.agents.keys())
        holes = MEMBERS - len(before.keys() & self.agents.keys())
        self.bench.obey()
        assert self.bench.job().phase is Phase.RUNNING
        assert not any(isinstance(agent.desired, DesiredStop) for agent in self.agents.values())
        after = self.places()
        assert len(after) == min(MEMBERS, len(self.agents))
        survivors = [name for name in before if name in after]
        order = sorted(survivors, key=lambda name: after[name])
        assert order == sorted(survivors, key=lambda name: before[name]), "survivors keep order"
        if len(before) == MEMBERS and spares >= holes:
            self.kept += 1
            assert {name: before[name] for name in survivors} == {
                name: after[name] for name in survivors
            }, "a survivor's rank changed while spares lasted"
            assert set(survivors) == before.keys() & self.agents.keys(), "a survivor lost its place"
        else:
            self.moved += 1
        return after


@pytest.mark.parametrize(
    ("seed", "failures"),
    [(0, FEW), *(pytest.param(seed, FAILURES, marks=pytest.mark.long) for seed in (0, 1))],
)
def test_ranks_stay_through_failures(seed: int, failures: int) -> None:
    """While spares last no survivor's rank changes; ranks are whole and restarts equal always."""
    churn = Churn(Bench(SPEC), random.Random(seed))
    for number in range(MEMBERS + SPARES):
        churn.join(f"n{number}")
    churn.bench.obey()
    places = churn.places()
    for _ in range(failures):
        churn.chance.choice((churn.fail_worker, churn.kill_agents))()
        places = churn.settle(places)
        if len(churn.agents) <= MIN_NODES + 2:
            churn.replace()
        churn.return_some()
        churn.bench.advance(1_000)
        places = churn.settle(places)
    churn.bench.check_journal()

    assert churn.bench.job().counts.restart_count == churn.charged
    assert churn.charged > failures // 4
    assert churn.kept > failures // 2
    assert churn.moved > 0
