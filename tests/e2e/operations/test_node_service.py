"""Nodes that fail repeatedly are quarantined, and an operator can cordon nodes."""

from __future__ import annotations

from google.protobuf.message import Message

from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.v1 import node_service_pb2 as service_pb2
from rallypoint.v1 import node_service_pb2_grpc as service_grpc
from support.processes.commands import Command
from support.processes.feed import LIMIT_S
from support.processes.jobs import is_started, node
from support.processes.mailbox import Worker
from support.processes.world import World

FLAGS = ("--max-restarts=9", "--shutdown-timeout=5", "--join-timeout=60")


def start(world: World, *names: str, nnodes: str, flags: tuple[str, ...] = ()) -> list[Command]:
    """Start agents one after the other, each known to the coordinator before the next."""
    agents = []
    for name in names:
        agent = world.agent(name, *FLAGS, *flags, nnodes=nnodes)
        agent.wait_event("coordinator_reached")
        agents.append(agent)
    return agents


def cordon(world: World, name: str, reason: str = "", job_id: str | None = None) -> Message:
    request = service_pb2.CordonNodeRequest(
        job_id=world.job_id if job_id is None else job_id, node_name=name, reason=reason
    )
    stub = service_grpc.NodeServiceStub(world.jobs.channel)
    return stub.CordonNode(request, timeout=LIMIT_S).health


def uncordon(world: World, name: str, job_id: str | None = None) -> Message:
    request = service_pb2.UncordonNodeRequest(
        job_id=world.job_id if job_id is None else job_id, node_name=name
    )
    stub = service_grpc.NodeServiceStub(world.jobs.channel)
    return stub.UncordonNode(request, timeout=LIMIT_S).health


def places(workers: list[Worker]) -> list[tuple[int, str]]:
    return [(worker.rank, worker.node) for worker in workers]


def test_node_that_keeps_failing_is_set_aside(world: World) -> None:
    """A spare takes its slot and the others keep theirs; job and agent report why."""
    flags = ("--quarantine-after=2", "--quarantine-cooldown=60")
    a, b = start(world, "a", "b", nnodes="2", flags=flags)
    first = world.mailbox.workers(2)
    (c,) = start(world, "c", nnodes="2", flags=flags)
    world.jobs.wait(world.job_id, lambda job: node(job, "c").spare)
    first[1].tell("exit", "3")
    second = world.mailbox.workers(2, round=2)
    assert places(first) == places(second) == [(0, "a"), (1, "b")]
    (once,) = world.jobs.get(world.job_id).health
    assert (once.node_name, once.failure_count, once.HasField("quarantine_time_left")) == (
        "b",
        1,
        False,
    )

    second[1].tell("exit", "3")
    third = world.mailbox.workers(2, round=3)

    assert places(third) == [(0, "a"), (1, "c")]
    job = world.jobs.wait(world.job_id, lambda job: is_started_without_b(job))
    (health,) = job.health
    assert (health.node_name, health.failure_count, health.quarantine_count) == ("b", 0, 1)
    assert 0 < health.quarantine_time_left.seconds <= 60
    assert "on node b failed first: exit code 3" in health.reason
    assert node(job, "b").health == health
    assert (node(job, "b").state, node(job, "b").spare) == (node_pb2.NODE_STATE_READY, False)
    assert not node(job, "a").HasField("health")
    b.wait_text("this node is set aside: quarantined, ")
    for worker in third:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in (a, b, c)] == [0, 0, 0]


def is_started_without_b(job: job_pb2.Job) -> bool:
    states = [member.state for member in job.nodes if member.name != "b"]
    return job.round.header.number == 3 and set(states) == {node_pb2.NODE_STATE_STARTED}


def test_cordoned_node_has_no_place_in_later_rounds(world: World) -> None:
    """Its round continues; the next one has the spare; an uncordoned node is a spare."""
    (a, _, _) = start(world, "a", "b", "c", nnodes="2")
    first = world.mailbox.workers(2)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 1))

    health = cordon(world, "a", "bad disk")
    assert health == node_pb2.NodeHealth(node_name="a", cordoned=True, reason="bad disk")
    job = world.jobs.get(world.job_id)
    assert is_started(job, 1)
    assert (list(job.health), node(job, "a").health) == ([health], health)

    first[1].tell("exit", "1")
    second = world.mailbox.workers(2, round=2)
    assert places(second) == [(0, "c"), (1, "b")]
    a.wait_text("this node is set aside: cordoned: bad disk")

    assert uncordon(world, "a") == node_pb2.NodeHealth(node_name="a")
    job = world.jobs.get(world.job_id)
    assert (node(job, "a").spare, node(job, "a").HasField("health")) == (True, False)
    second[1].tell("exit", "1")
    assert places(world.mailbox.workers(2, round=3)) == [(0, "c"), (1, "b")]


def test_cordon_holds_where_nodes_are_short(world: World) -> None:
    """A job waits for another node rather than use a cordoned one, and reports that."""
    a, b = start(world, "a", "b", nnodes="2")
    first = world.mailbox.workers(2)
    cordon(world, "b", "bad disk")
    first[0].tell("exit", "1")
    job = world.jobs.wait(world.job_id, lambda job: job.waiting.kind == job_pb2.WAIT_KIND_NODES)

    waited = [(awaited.name, awaited.state, awaited.text) for awaited in job.waiting.nodes]
    assert ("b", job_pb2.AWAITED_STATE_CORDONED, "cordoned: bad disk") in waited
    assert (job.waiting.ready_nodes, job.waiting.needed_nodes) == (1, 2)
    for agent in (a, b):
        agent.wait_text("1 of 2 required nodes are ready; set aside: b (cordoned: bad disk); at ")
    uncordon(world, "b")
    assert places(world.mailbox.workers(2, round=2)) == [(0, "a"), (1, "b")]
