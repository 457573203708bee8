"""A node that fails repeatedly is quarantined."""

from __future__ import annotations

from rallypoint.v1 import job_pb2, node_pb2
from support.processes.commands import Command
from support.processes.jobs import node
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


def places(workers: list[Worker]) -> list[tuple[int, str]]:
    return [(worker.rank, worker.node) for worker in workers]


def test_node_that_keeps_failing_is_kept_out(world: World) -> None:
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
    b.wait_text("this node is kept out of rounds: quarantined, ")
    for worker in third:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in (a, b, c)] == [0, 0, 0]


def is_started_without_b(job: job_pb2.Job) -> bool:
    states = [member.state for member in job.nodes if member.name != "b"]
    return job.round.header.number == 3 and set(states) == {node_pb2.NODE_STATE_STARTED}
