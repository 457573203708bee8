"""What every launcher does with a job of two nodes: each claim, under each of them.

Tests of one launcher have what only that one can do. `rallypoint agent` has a row here where its
tests claim no more.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import NamedTuple

import grpc
import pytest

from rallypoint.v1 import job_pb2, round_pb2
from support.elastic.nodes import launch, launch_own
from support.etcd.coordinators import until
from support.languages.nodejs_client import Client
from support.processes.commands import Command
from support.processes.jobs import is_started, pids
from support.processes.mailbox import Worker
from support.processes.world import NEW, World
from support.torchrun.plugin import SOON, torchrun

NOW = SOON.replace("=20", "=0")
"""A job under torchrun that waits for nothing but its least nodes."""


Fixtures = pytest.FixtureRequest


def start_agent(world: World, name: str, nnodes: str, restarts: int, _: Fixtures) -> Command:
    return world.agent(name, f"--max-restarts={restarts}", nnodes=nnodes)


def start_torchrun(world: World, name: str, nnodes: str, restarts: int, _: Fixtures) -> Command:
    return torchrun(world, name, f"--max-restarts={restarts}", nnodes=nnodes, conf=NOW)


def start_elastic(world: World, name: str, nnodes: str, restarts: int, _: Fixtures) -> Command:
    return launch(world, name=name, nodes=span(nnodes), max_restarts=restarts)


def start_own(world: World, name: str, nnodes: str, restarts: int, _: Fixtures) -> Command:
    return launch_own(world, name, span(nnodes), restarts=restarts)


def start_nodejs(
    world: World, name: str, nnodes: str, restarts: int, fixtures: Fixtures
) -> Command:
    client: Client = fixtures.getfixturevalue("client")
    return client.join(world, name, nnodes=nnodes, spec={"maxRestarts": restarts})


def span(nnodes: str) -> tuple[int, int]:
    least, _, most = nnodes.partition(":")
    return int(least), int(most or least)


class Launcher(NamedTuple):
    """How a launcher starts a node, and how it ends."""

    name: str
    start: Callable[[World, str, str, int, Fixtures], Command]
    failed: int = 1
    """Its exit code when the job has failed for good, because of rank 1."""
    blame: str = ""
    """What it prints then, on the node without the failure."""
    counts: tuple[int, int] = (1, 1)
    """TORCHELASTIC_RESTART_COUNT by rank, after rank 1 has failed."""
    charge: tuple[int, int] = (1, 3)
    """Restarts of the job then, and the culprit's exit code, as the coordinator knows them."""
    signalled: int = 1
    """Its exit code after SIGTERM."""


AGENT = Launcher("agent", start_agent, signalled=128 + signal.SIGTERM)
TORCHRUN = Launcher(
    "torchrun",
    start_torchrun,
    blame="failed first: exit code 7",
    # The agents of torch count, and each only the failures of its workers.
    counts=(0, 1),
    charge=(0, 0),
)
ELASTIC = Launcher("elastic", start_elastic)
OWN = Launcher("own", start_own, failed=0, blame='{"state": "FAILED", "failures": [1]')
"""A program with an agent that runs its workers itself."""
NODEJS = Launcher("nodejs", start_nodejs, blame="agent: the job failed: ")


def rows(*launchers: Launcher) -> pytest.MarkDecorator:
    """Return the mark of a claim about these launchers."""
    chosen = [
        pytest.param(one, id=one.name, marks=() if one is AGENT else pytest.mark.long)
        for one in launchers
    ]
    return pytest.mark.parametrize("launcher", chosen)


class Nodes:
    """The nodes of one job."""

    def __init__(self, world: World, launcher: Launcher, fixtures: Fixtures) -> None:
        self.world, self.launcher, self.fixtures = world, launcher, fixtures

    def start(self, *names: str, nnodes: str = "2", restarts: int = 0) -> list[Command]:
        """Start nodes."""
        return [
            self.launcher.start(self.world, name, nnodes, restarts, self.fixtures) for name in names
        ]


@pytest.fixture
def nodes(world: World, launcher: Launcher, request: Fixtures) -> Nodes:
    return Nodes(world, launcher, request)


def succeed(world: World, workers: list[Worker], commands: list[Command]) -> None:
    """Let all workers exit with 0; check that the job has succeeded everywhere."""
    for worker in workers:
        worker.tell("exit", "0")
    assert [command.wait() for command in commands] == [0] * len(commands)
    assert world.jobs.get(world.job_id).outcome == job_pb2.OUTCOME_SUCCEEDED


@rows(TORCHRUN, ELASTIC, OWN, NODEJS)
def test_failure_restarts_all(world: World, nodes: Nodes) -> None:
    """Both nodes form a round; a failure on one restarts the workers of both, is charged once."""
    commands = nodes.start("a", "b", restarts=1)
    first = world.mailbox.workers(2)
    shown = world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    first[1].tell("exit", "3")
    second = world.mailbox.workers(2, round=2)

    assert [(one.rank, one.env["WORLD_SIZE"]) for one in first] == [(0, "2"), (1, "2")]
    assert sorted(one.name for one in shown.nodes) == ["a", "b"]
    assert [one.node for one in second] == [one.node for one in first]
    assert tuple(one.restart_count for one in second) == nodes.launcher.counts
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))
    culprit = job.verdict.culprit
    assert (job.restart_count, culprit.exit.exit_code) == nodes.launcher.charge
    succeed(world, second, commands)


@rows(TORCHRUN, OWN, NODEJS)
def test_failure_for_good(world: World, nodes: Nodes) -> None:
    """Without a restart left all nodes end, and the one without the failure says whose it was."""
    commands = dict(zip("ab", nodes.start("a", "b"), strict=True))
    world.mailbox.workers(2)[1].tell("exit", "7")

    assert [command.wait() for command in commands.values()] == [nodes.launcher.failed] * 2
    job = world.jobs.get(world.job_id)
    del commands[job.verdict.culprit.node_name]
    (other,) = commands.values()
    assert nodes.launcher.blame in other.stdout() + other.stderr()
    assert job.outcome == job_pb2.OUTCOME_FAILED
    assert world.left() == []


@rows(AGENT, TORCHRUN, OWN)
def test_node_comes_and_leaves(world: World, nodes: Nodes) -> None:
    """A node joins a job that runs; when it gets a signal the other continues, uncharged."""
    (stays,) = nodes.start("a", nnodes="1:2")
    world.mailbox.workers(1)
    (leaves,) = nodes.start("b", nnodes="1:2")
    both = world.mailbox.workers(2, round=2)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 2))
    leaves.signal(signal.SIGTERM)
    (last,) = world.mailbox.workers(1, round=3)

    assert [one.env["WORLD_SIZE"] for one in both] == ["2", "2"]
    assert leaves.wait() == nodes.launcher.signalled
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 3))
    assert [one.name for one in job.nodes] == ["a"]
    assert (job.restart_count, last.restart_count, last.env["WORLD_SIZE"]) == (0, 0, "1")
    assert job.round.header.reason == round_pb2.ROUND_REASON_NODE_LEFT
    succeed(world, [last], [stays])


@rows(TORCHRUN, ELASTIC, NODEJS)
@pytest.mark.usefixtures("forgetful")
def test_coordinator_that_is_killed(world: World, nodes: Nodes) -> None:
    """A new one takes the round over; no worker notices."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    commands = nodes.start("a", "b")
    workers = world.mailbox.workers(2)
    before = world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    coordinator.kill()
    world.coordinator(port)

    def has_returned() -> bool:
        try:
            job = world.jobs.get(world.job_id)
        except grpc.RpcError:  # no node has returned yet
            return False
        return is_started(job, 1) and [node.attached for node in job.nodes] == [True, True]

    until(has_returned)
    after = world.jobs.get(world.job_id)
    assert (after.round.header, pids(after)) == (before.round.header, pids(before))
    assert len(world.mailbox.started()) == 2
    succeed(world, workers, commands)
