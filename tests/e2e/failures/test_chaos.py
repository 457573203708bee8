"""Processes are killed one after the other, at moments that a seed chooses; then the job recovers.

The faults come faster than the job recovers: during a start, during a stop, before a node has sent
Hello. The seed is the test's parameter: run it again with `-k`.
"""

import random
from contextlib import suppress

import pytest

from rallypoint.v1 import job_pb2
from support.preload.room import is_forkserver, parent_of
from support.processes.commands import Command
from support.processes.jobs import is_started, pids
from support.processes.world import NEW, World

NODES = ("a", "b", "c")
WORKERS_EACH = 2
REACHED = ("coordinator_reached", "coordinator_reached_again")
FAULTS = 7
"""Fewer than the 10 re-formations in a row after which a job without progress fails."""


class Chaos:
    """A job of three nodes with faults."""

    def __init__(self, world: World, seed: int, *flags: str) -> None:
        self.world = world
        self.flags = ("--max-restarts=100", "--shutdown-timeout=2", *flags)
        self.rng = random.Random(seed)
        self.agents = {name: self.start(name) for name in NODES}
        world.mailbox.workers(len(NODES) * WORKERS_EACH)

    def start(self, name: str) -> Command:
        return self.world.agent(name, *self.flags, nnodes=str(len(NODES)), nproc=WORKERS_EACH)

    def kill_worker(self) -> None:
        living = set(self.world.marked())
        workers = [worker for worker in self.world.mailbox.started() if worker.pid in living]
        if workers:
            self.rng.choice(workers).kill()

    def kill_agent(self) -> None:
        name = self.rng.choice(NODES)
        self.agents[name].kill()
        self.agents[name] = self.start(name)

    def await_node(self) -> None:
        """Wait until the newest agent of a node is registered."""
        self.agents[self.rng.choice(NODES)].wait_event(*REACHED)

    def is_whole(self, job: job_pb2.Job) -> bool:
        if len(job.nodes) < len(NODES) or not is_started(job, job.round.header.number):
            return False
        return all(node.attached for node in job.nodes) and {*pids(job)} <= {*self.world.marked()}

    def check(self, *coordinators: Command) -> None:
        """Wait until the job is whole: every rank exists once, and nothing else runs."""
        world = self.world
        job = world.jobs.wait(world.job_id, self.is_whole)
        ours = set(pids(job))
        for pid in ours:
            world.mailbox.wait("started", pid=pid)
        workers = [worker for worker in world.mailbox.started() if worker.pid in ours]
        agents = list(self.agents.values())

        assert sorted(worker.rank for worker in workers) == list(range(len(ours)))
        assert {worker.round for worker in workers} == {job.round.header.number}
        assert {worker.restart_count for worker in workers} == {job.restart_count}
        assert len({worker.env["MASTER_PORT"] for worker in workers}) == 1
        ours |= {worker.parent for worker in workers}
        ours |= {command.pid for command in (*agents, *coordinators)}
        if any(flag.startswith("--preload") for flag in self.flags):
            ours |= find_forkservers(world, {agent.pid for agent in agents})
        assert world.left(spared=ours) == []
        for worker in workers:
            worker.tell("exit", "0")
        assert [agent.wait() for agent in agents] == [0] * len(NODES)


def find_forkservers(world: World, agents: set[int]) -> set[int]:
    """Return the forkservers of these agents, with their helpers."""
    parents = {}
    for pid in world.marked():
        with suppress(OSError):  # it has ended
            parents[pid] = parent_of(pid)
    helpers = {pid for pid, parent in parents.items() if parent in agents}
    return helpers | {pid for pid in parents if parents[pid] in helpers and is_forkserver(pid)}


MORE = pytest.mark.nightly


@pytest.mark.parametrize(
    ("seed", "flags"),
    [
        (1, ()),
        pytest.param(2, (), marks=MORE),
        pytest.param(3, (), marks=MORE),
        pytest.param(1, ("--preload=json",), marks=MORE),
        pytest.param(2, ("--preload=auto",), marks=MORE),
    ],
)
def test_job_survives_the_death_of_workers_and_agents(
    world: World, seed: int, flags: tuple[str, ...]
) -> None:
    """Whatever is killed, the job ends up in one round with every rank once."""
    chaos = Chaos(world, seed, *flags)
    for _ in range(FAULTS):
        chaos.rng.choice((chaos.kill_worker, chaos.kill_agent, chaos.await_node))()
    for agent in chaos.agents.values():
        agent.wait_event(*REACHED)

    chaos.check()


@pytest.mark.parametrize("seed", [4, pytest.param(5, marks=MORE)])
@pytest.mark.usefixtures("forgetful")
def test_job_survives_the_death_of_everything(world: World, seed: int) -> None:
    """The coordinator is killed too, among the others and as the last."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    chaos = Chaos(world, seed)
    for fault in range(FAULTS):
        if fault == FAULTS // 2:
            coordinator.kill()
            coordinator = world.coordinator(port)
        chaos.rng.choice((chaos.kill_worker, chaos.kill_agent))()
    coordinator.kill()
    coordinator = world.coordinator(port)
    coordinator.wait_event("node_joined", count=len(NODES))

    chaos.check(coordinator)
