"""Jobs that succeed: every agent exits with 0, at the same time."""

from rallypoint.v1 import job_pb2, node_pb2
from support.processes.jobs import node
from support.processes.world import World


def test_every_agent_of_a_job_that_succeeded_exits_0(world: World) -> None:
    """With two members and a spare, the one that finishes early waits; then all exit with 0."""
    members = [world.agent(name, "--no-grow", nnodes="2", nproc=2) for name in ("a", "b")]
    workers = world.mailbox.workers(4)
    spare = world.agent("spare", "--no-grow", nnodes="2", nproc=2)
    assert world.job_id in spare.wait_event("became_spare")["why"]
    job = world.jobs.wait(world.job_id, lambda job: node(job, "spare").spare)

    assert [member.node_name for member in job.round.members] == ["a", "b"]
    for worker in workers[:2]:
        worker.tell("exit", "0")
    job = world.jobs.wait(
        world.job_id, lambda job: node(job, "a").state == node_pb2.NODE_STATE_SUCCEEDED
    )
    assert job.phase == job_pb2.JOB_PHASE_RUNNING
    assert [agent.is_running() for agent in (*members, spare)] == [True] * 3
    for worker in workers[2:]:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in (*members, spare)] == [0, 0, 0]
    assert world.left() == []
    assert [agent.said() for agent in (*members, spare)] == [[], [], []]
    idle = [len(agent.events("job_ended_without_this_node")) for agent in (*members, spare)]
    assert idle == [0, 0, 1]
    assert world.jobs.get(world.job_id).outcome == job_pb2.OUTCOME_SUCCEEDED
    assert len(world.mailbox.started()) == 4


def test_node_that_is_lost_after_it_succeeded_keeps_its_success(world: World) -> None:
    """SIGKILL to an agent whose workers have all exited with 0 fails nothing."""
    first = world.agent("a", nnodes="2")
    second = world.agent("b", nnodes="2")
    workers = world.mailbox.workers(2)
    workers[0].tell("exit", "0")
    world.jobs.wait(world.job_id, lambda job: node(job, "a").state == node_pb2.NODE_STATE_SUCCEEDED)
    first.kill()
    world.jobs.wait(world.job_id, lambda job: len(job.nodes) == 1)
    workers[1].tell("exit", "0")

    assert second.wait() == 0
    assert len(world.mailbox.started()) == 2
