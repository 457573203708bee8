"""A watch of a real job, from its first round to its end."""

from rallypoint.v1 import job_pb2, node_pb2
from support.processes.jobs import is_started, node
from support.processes.world import World


def test_watch_shows_the_whole_life_of_a_job(world: World) -> None:
    """A watch shows every change, also a worker's exit; it ends when all nodes know the outcome."""
    agents = [world.agent(name, nnodes="2") for name in ("a", "b")]
    workers = world.mailbox.workers(2)
    states = world.jobs.watch(world.job_id)
    running = next(job for job in states if is_started(job, 1))
    workers[0].tell("exit", "0")
    half = next(job for job in states if node(job, "a").state == node_pb2.NODE_STATE_SUCCEEDED)
    workers[1].tell("exit", "0")
    rest = list(states)

    assert [member.node_name for member in running.round.members] == ["a", "b"]
    assert node(half, "b").state == node_pb2.NODE_STATE_STARTED
    assert node(half, "a").workers[0].exit.exit_code == 0
    assert [agent.wait() for agent in agents] == [0, 0]
    assert rest[-1].phase == job_pb2.JOB_PHASE_CLOSED
    assert rest[-1].outcome == job_pb2.OUTCOME_SUCCEEDED
    assert not rest[-1].nodes
    assert [summary.world_size for summary in rest[-1].history] == [2]
