"""Twenty random failures of six nodes and two spares, judged by what the workers report.

Workers and agents are killed. Agents come back under their name or a new one, at once or after the
job has restarted without them; once more of them die than there are spares. The seed is the test's
parameter.
"""

import random
from collections import defaultdict
from itertools import pairwise

import pytest

from rallypoint.v1 import job_pb2
from support.processes.commands import Command
from support.processes.jobs import is_started, pids
from support.processes.mailbox import Worker
from support.processes.world import World

MEMBERS, SPARES, MIN_NODES = 6, 2, 3
FAILURES = 20
REACHED = ("coordinator_reached", "coordinator_reached_again")
FLAGS = (
    "--last-call=30",  # the first round waits for all
    "--max-restarts=100",
    "--max-reformations=100",
    "--crash-loop=0",
    "--quarantine-after=0",
    "--shutdown-timeout=5",
)


class Churn:
    """A job that loses workers and agents, and gets new ones."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.agents: dict[str, Command] = {}
        """Living agents by node name."""
        self.charged = 0
        """Failures that must have been charged: counted here."""
        self.born = 0
        for number in range(MEMBERS + SPARES):
            self.start(f"n{number}")
        self.now = self.await_whole()

    def start(self, name: str) -> Command:
        self.agents[name] = self.world.agent(name, *FLAGS, nnodes=f"{MIN_NODES}:{MEMBERS}")
        return self.agents[name]

    def is_whole(self, job: job_pb2.Job) -> bool:
        """Return whether all live nodes take part, with as many workers as possible."""
        if {node.name for node in job.nodes} != set(self.agents):
            return False
        if not all(node.attached for node in job.nodes):
            return False
        if not is_started(job, job.round.header.number):
            return False
        found = pids(job)
        return len(found) == min(MEMBERS, len(self.agents)) and {*found} <= {*self.world.marked()}

    def await_whole(self) -> dict[str, Worker]:
        """Wait until the job is whole; return its workers by node, after they were checked."""
        for agent in self.agents.values():
            agent.wait_event(*REACHED)
        job = self.world.jobs.wait(self.world.job_id, self.is_whole)
        ours = set(pids(job))
        for pid in ours:
            self.world.mailbox.wait("started", pid=pid)
        self.now = {
            worker.node: worker for worker in self.world.mailbox.started() if worker.pid in ours
        }

        assert sorted(worker.rank for worker in self.now.values()) == list(range(len(ours)))
        assert {worker.env["WORLD_SIZE"] for worker in self.now.values()} == {str(len(ours))}
        assert {worker.restart_count for worker in self.now.values()} == {self.charged}
        return self.now

    def kill_worker(self) -> None:
        self.chance.choice(sorted(self.now.values(), key=lambda worker: worker.rank)).kill()
        self.charged += 1
        self.await_whole()

    def kill_agents(self, count: int = 1) -> None:
        """Kill agents, members or spares; new ones start at once, or after the job has gone on."""
        dead = self.chance.sample(sorted(self.agents), count)
        for name in dead:
            self.agents.pop(name).kill()
        if count > SPARES or self.chance.random() < 0.5:
            self.await_whole()
        for name in dead:
            self.born += 1
            self.start(name if self.chance.random() < 0.5 else f"new{self.born}")
        self.await_whole()


def check_rounds(started: list[Worker]) -> tuple[int, int]:
    """Compare every round with the one before, as the workers saw them.

    Returns:
        The number of rounds for which spares sufficed, and for which they did not.
    """
    rounds: defaultdict[int, dict[str, Worker]] = defaultdict(dict)
    for worker in started:
        assert worker.node not in rounds[worker.round], "a round was started twice on one node"
        rounds[worker.round][worker.node] = worker
    for workers in rounds.values():
        ranks = [worker.rank for worker in workers.values()]
        (world_size,) = {int(worker.env["WORLD_SIZE"]) for worker in workers.values()}
        assert len(set(ranks)) == len(ranks)
        assert max(ranks) < world_size
        assert len({worker.restart_count for worker in workers.values()}) == 1
    kept = moved = 0
    for before, after in pairwise(rounds[number] for number in sorted(rounds)):
        sizes = {worker.env["WORLD_SIZE"] for worker in (*before.values(), *after.values())}
        was = {name: worker.rank for name, worker in before.items() if name in after}
        came = {name: after[name].rank for name in was}
        assert sorted(was, key=was.__getitem__) == sorted(came, key=came.__getitem__)
        if sizes == {str(MEMBERS)}:
            assert was == came, "a survivor's rank changed while spares lasted"
            kept += 1
        else:
            moved += 1
    return kept, moved


@pytest.mark.nightly  # tests/unit/server/core/rounds/test_churn.py has more failures, on the core
@pytest.mark.parametrize("seed", [1])
def test_ranks_stay_while_spares_last(world: World, seed: int) -> None:
    """Every rank exists once, the restart count is common, and survivors keep their ranks."""
    churn = Churn(world, seed)
    for number in range(FAILURES):
        if number == FAILURES // 2:
            churn.kill_agents(SPARES + 2)
        elif churn.chance.random() < 0.5:
            churn.kill_worker()
        else:
            churn.kill_agents()
    kept, moved = check_rounds(world.mailbox.started())
    for worker in churn.now.values():
        worker.tell("exit", "0")

    assert kept >= FAILURES // 2
    assert moved >= 1
    assert {agent.wait() for agent in churn.agents.values()} == {0}
