"""Nodes on separate hosts, and a network that fails, in one direction or both."""

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rallypoint.v1 import round_pb2
from support.machines.netns import Network, NotPermitted
from support.processes.commands import COORDINATOR, Command
from support.processes.jobs import Jobs, is_started
from support.processes.mailbox import Worker
from support.processes.world import World

LOST_S_MAX = 12.0
"""A lease is 5 s; the rest is for a busy machine."""


class Hosts:
    """A coordinator here, and agents a, b, c on separate hosts."""

    def __init__(self, network: Network, world: World) -> None:
        self.network = network
        self.world = world
        world.patience = ()  # jobs have the lease that a coordinator gives
        here = network.hosts["here"]
        self.coordinator = world.start(
            "coordinator", [COORDINATOR, f"--host={here.address}", "--port=0"]
        )
        world.target = self.coordinator.stdout_line().removeprefix("listening on ")
        world.jobs.channel.close()
        world.jobs = Jobs(world.target)

    def agent(self, name: str, *flags: str, nnodes: str) -> Command:
        host = self.network.hosts[name]
        address = f"--local-addr={host.address}"
        return self.world.agent(name, address, *flags, nnodes=nnodes, prefix=host.prefix())

    def start(self, *names: str, nnodes: str) -> dict[str, Command]:
        """Start agents one after the other; each is registered before the next starts."""
        agents: dict[str, Command] = {}
        for name in names:
            agents[name] = self.agent(name, nnodes=nnodes)
            agents[name].wait_event("coordinator_reached")
        return agents

    def cut(self, name: str, direction: str) -> float:
        """Cut a host off from the coordinator; return when, in monotonic seconds."""
        if direction in ("up", "both"):
            self.network.cut(name, "here")
        if direction in ("down", "both"):
            self.network.cut("here", name)
        return time.monotonic()

    def finish(self, workers: list[Worker], agents: dict[str, Command]) -> None:
        for worker in workers:
            worker.tell("exit", "0")
        assert [agent.wait() for agent in agents.values()] == [0] * len(agents)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    try:
        network = Network("a", "b", "c")
    except NotPermitted as why:
        pytest.skip(str(why))
    with (
        network,
        tempfile.TemporaryDirectory() as folder,
        World(tmp_path, "localhost:1", f"{folder}/mailbox") as world,
    ):
        yield Hosts(network, world)


LONG = pytest.mark.long


def test_each_network_has_addresses_of_its_own(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the same are drawn: this machine would reach the hosts of another test."""
    taken = int(hosts.network.hosts["a"].address.split(".")[2]) - 1
    monkeypatch.setattr("support.machines.netns.secrets.randbelow", lambda _: taken)
    with Network("a") as other, Network("a") as third:
        networks = (hosts.network, other, third)

        assert len({network.hosts["a"].address for network in networks}) == 3


@pytest.mark.parametrize(
    "direction", [pytest.param("up", marks=LONG), pytest.param("down", marks=LONG), "both"]
)
def test_node_that_is_cut_off_is_lost_and_comes_back(hosts: Hosts, direction: str) -> None:
    """A round without it begins; back, it stops its old workers and joins again."""
    world = hosts.world
    agents = hosts.start("a", "b", nnodes="1:2")
    # "a" may have begun alone; what counts is the round of both.
    first = world.jobs.wait(world.job_id, lambda job: len(job.round.header.master_addr) > 0)
    both = first.round.header.number if first.round.header.group_world_size == 2 else 2
    old = world.mailbox.workers(2, round=both)
    cut_s = hosts.cut("b", direction)
    lost = hosts.coordinator.wait_event("node_lost")
    took_s = time.monotonic() - cut_s
    (alone,) = world.mailbox.workers(1, round=both + 1)
    away = agents["b"].wait_event("coordinator_not_reached")

    assert (lost["node"], alone.node, alone.env["WORLD_SIZE"]) == ("b", "a", "1")
    assert 0.4 < took_s < LOST_S_MAX
    # On a slow machine the coordinator can say so before the agent misses its messages.
    assert any(
        why in away["why"]
        for why in ("no message from the coordinator for 5 s", "this session counts as lost")
    )
    assert old[1].pid in world.marked()
    hosts.network.heal()
    again = world.mailbox.workers(2, round=both + 2)
    assert [(worker.rank, worker.node) for worker in again] == [(0, "a"), (1, "b")]
    assert [worker.restart_count for worker in again] == [0, 0]
    assert old[1].pid not in world.marked()
    hosts.finish(again, agents)


def test_spare_takes_the_ranks_of_a_node_that_is_cut_off(hosts: Hosts) -> None:
    """Survivors keep their ranks, and the node that returns is a spare."""
    world = hosts.world
    agents = hosts.start("a", "b", nnodes="2")
    old = world.mailbox.workers(2)
    agents |= hosts.start("c", nnodes="2")
    hosts.cut("a", "both")
    new = world.mailbox.workers(2, round=2)

    assert [(worker.rank, worker.node) for worker in old] == [(0, "a"), (1, "b")]
    assert [(worker.rank, worker.node) for worker in new] == [(0, "c"), (1, "b")]
    assert new[0].env["MASTER_ADDR"] == hosts.network.hosts["c"].address
    hosts.network.heal()
    agents["a"].wait_event("coordinator_reached_again")
    agents["a"].wait_event("round_stopped")
    job = world.jobs.wait(
        world.job_id, lambda job: any(node.spare and node.name == "a" for node in job.nodes)
    )
    assert job.round.header.number == 2
    assert old[0].pid not in world.marked()
    hosts.finish(new, agents)


def test_slow_and_lossy_network_loses_nobody(hosts: Hosts) -> None:
    """With 100 ms delay each way and 5 % packet loss, no node is lost."""
    world = hosts.world
    hosts.network.worsen(delay_s=0.1, loss=0.05)
    agents = {name: hosts.agent(name, "--max-restarts=3", nnodes="3") for name in ("a", "b", "c")}
    for round in (1, 2, 3):
        workers = world.mailbox.workers(3, round=round)
        job = world.jobs.wait(world.job_id, partial(is_started, round=round))
        assert job.restart_count == round - 1
        assert [worker.rank for worker in workers] == [0, 1, 2]
        if round < 3:
            workers[round].tell("exit", "1")

    assert hosts.coordinator.events("node_lost") == []
    assert job.round.header.reason == round_pb2.ROUND_REASON_WORKER_FAILED
    hosts.finish(workers, agents)


def test_fenced_workers_are_dead_before_the_next_round(hosts: Hosts) -> None:
    """A node that receives but cannot send stops its workers before the next round."""
    world, flags = hosts.world, ("--fence-after=6", "--shutdown-timeout=1")
    agents = {name: hosts.agent(name, *flags, nnodes="2") for name in ("a", "b")}
    old = world.mailbox.workers(2)
    agents["c"] = hosts.agent("c", *flags, nnodes="2")
    hosts.coordinator.wait_event("node_joined", count=3)
    hosts.cut("b", "up")
    agents["b"].wait_event("fence_enforced")
    new = world.mailbox.workers(2, round=2)

    assert [worker.node for worker in new] == ["a", "c"]
    assert old[1].pid not in world.marked()
    hosts.network.heal()
    agents["b"].wait_event("coordinator_reached_again")
    hosts.finish(new, agents)
