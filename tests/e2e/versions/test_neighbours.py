"""Agents and coordinators that are one version apart, as real processes, in both directions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rallypoint.v1 import node_service_pb2, round_pb2
from rallypoint.v1 import node_service_pb2_grpc as node_grpc
from support.processes.commands import COORDINATOR, NODE_AGENT, Command
from support.processes.feed import LIMIT_S
from support.processes.jobs import Jobs, is_started, pids
from support.processes.world import World
from support.versions.earlier import Package, install_earlier

FLAGS = ("--last-call=60", "--max-restarts=3", "--drain-timeout=60")
NOW = Package(NODE_AGENT, COORDINATOR)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return install_earlier(tmp_path_factory.mktemp("earlier"))


def start_coordinator(world: World, package: Package, port: str = "0") -> Command:
    argv = [package.coordinator, "--host=127.0.0.1", f"--port={port}"]
    command = world.start("coordinator", argv)
    world.target = command.stdout_line().removeprefix("listening on ")
    world.jobs.channel.close()
    world.jobs = Jobs(world.target)
    return command


def start_agent(world: World, package: Package, name: str) -> Command:
    argv = [package.node_agent, *world.argv(name, *FLAGS, nnodes="1:2")[1:]]
    return world.start(f"agent {name}", argv)


def drain(world: World, name: str) -> None:
    request = node_service_pb2.DrainNodeRequest(
        job_id=world.job_id, node_name=name, reason="new kernel"
    )
    request.drain_timeout.FromSeconds(60)
    node_grpc.NodeServiceStub(world.jobs.channel).DrainNode(request, timeout=LIMIT_S)


@pytest.mark.long
@pytest.mark.parametrize(
    ("coordinators", "agents"),
    [
        ("now now", "earlier earlier"),
        ("earlier earlier", "now now"),
        ("earlier now", "earlier now"),
    ],
    ids=["earlier agents", "earlier coordinator", "upgrade"],
)
def test_neighbours_run_a_job(
    world: World, earlier: Package, coordinators: str, agents: str
) -> None:
    """A failure, a restart, a coordinator that comes back, a drain with its notice, and success."""
    packages = {"now": NOW, "earlier": earlier}
    first, second = (packages[name] for name in coordinators.split())
    coordinator = start_coordinator(world, first)
    a, b = (
        start_agent(world, packages[kind], name)
        for kind, name in zip(agents.split(), "ab", strict=True)
    )
    world.mailbox.workers(2)[1].tell("exit", "3")
    workers = world.mailbox.workers(2, round=2)
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))
    before = pids(job)
    reason = job.round.header.reason

    coordinator.kill()
    port = world.target.rpartition(":")[2]
    start_coordinator(world, second, port)
    for agent in (a, b):
        agent.wait_event("coordinator_reached_again")
    after = pids(world.jobs.wait(world.job_id, lambda job: is_started(job, 2)))

    drain(world, "b")
    a.wait_event("notice_received")
    stayer, leaver = (next(one for one in workers if one.node == name) for name in "ab")
    (notice,) = json.loads(Path(stayer.env["RALLYPOINT_NOTICE_FILE"]).read_text())
    leaver.tell("exit", "0")
    left = b.wait()
    (last,) = world.mailbox.workers(1, round=3)
    last.tell("exit", "0")

    assert [1, 1] == [worker.restart_count for worker in workers]
    assert round_pb2.ROUND_REASON_WORKER_FAILED == reason
    assert before == after == [worker.pid for worker in workers]
    assert ("drain", "b", False) == (notice["kind"], notice["node"], notice["here"])
    assert 0 == a.wait(), a.stderr()
    assert 0 == left, b.stderr()
    assert (last.node, last.env["WORLD_SIZE"]) == ("a", "1")
