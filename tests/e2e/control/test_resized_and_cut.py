"""A job that an operator has resized, whose agents lose their connections."""

from __future__ import annotations

from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from support.machines.proxy import Proxy
from support.processes.feed import LIMIT_S
from support.processes.jobs import is_started, pids
from support.processes.world import World


def resize(world: World, **fields: int) -> None:
    update = service_pb2.JobUpdate(**fields)
    request = service_pb2.UpdateJobRequest(job_id=world.job_id, update=update)
    service_grpc.JobServiceStub(world.jobs.channel).UpdateJob(request, timeout=LIMIT_S)


def test_agents_return_to_a_round_that_their_flags_do_not_allow(world: World) -> None:
    """It is larger than each of them was started for. They keep their workers."""
    with Proxy(world.target) as proxy:
        way = f"--coordinator={proxy.address}"
        agents = [world.agent(name, way, nnodes="2") for name in ("a", "b")]
        world.mailbox.workers(2)
        resize(world, max_nodes=3)
        agents.append(world.agent("c", way, nnodes="2"))
        before = world.jobs.wait(world.job_id, lambda job: job.round.header.group_world_size == 3)
        number = before.round.header.number
        before = world.jobs.wait(world.job_id, lambda job: is_started(job, number))
        proxy.cut()
        for agent in agents:
            agent.wait_event("coordinator_reached_again")

        after = world.jobs.wait(world.job_id, lambda job: all(node.attached for node in job.nodes))
        assert (after.round.header, pids(after)) == (before.round.header, pids(before))
        for worker in world.mailbox.workers(3, round=number):
            worker.tell("exit", "0")
        assert [0, 0, 0] == [agent.wait() for agent in agents]
