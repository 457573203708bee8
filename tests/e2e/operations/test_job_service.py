"""What a coordinator reports of its jobs while they run."""

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


def test_job_is_shown_as_it_is(world: World) -> None:
    """GetJob shows specification, round, members, and workers with pid and rank."""
    world.agent("a", "--max-restarts=2", "--label=rack=7", nnodes="1:1", nproc=2)
    workers = world.mailbox.workers(2)
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 1))

    assert (job.job_id, job.run, job.phase) == (world.job_id, 1, job_pb2.JOB_PHASE_RUNNING)
    assert (job.spec.min_nodes, job.spec.max_nodes, job.spec.max_restarts) == (1, 1, 2)
    assert not job.HasField("waiting")
    (only,) = job.nodes
    assert (only.name, only.state, only.address) == ("a", node_pb2.NODE_STATE_STARTED, "127.0.0.1")
    assert dict(only.labels) == {"rack": "7"}
    assert [(worker.rank, worker.pid) for worker in only.workers] == [
        (worker.rank, worker.pid) for worker in workers
    ]


def test_wait_of_a_forming_job_explains_itself(world: World) -> None:
    """A wait has its kind, how many nodes are ready and needed, its duration, and a text."""
    agent = world.agent("a", "--join-timeout=60", nnodes="2:3")
    agent.wait_event("coordinator_reached")
    job = world.jobs.wait(world.job_id, lambda job: job.waiting.kind == job_pb2.WAIT_KIND_NODES)

    assert (job.waiting.ready_nodes, job.waiting.needed_nodes) == (1, 2)
    assert 0 < job.waiting.time_left.seconds < 60
    assert job.waiting.text.startswith("1 of 2 required nodes are ready; at most ")
    agent.wait_text("1 of 2 required nodes are ready; at most ")


def test_wait_names_the_node_that_was_lost(world: World) -> None:
    """A round that waits for a lost node names it, and since when it is lost."""
    stays = world.agent("a", nnodes="2")
    lost = world.agent("b", nnodes="2")
    world.mailbox.workers(2)
    lost.kill()
    job = world.jobs.wait(
        world.job_id,
        lambda job: job.waiting.kind == job_pb2.WAIT_KIND_NODES and len(job.departures) == 1,
    )

    assert [(awaited.name, awaited.state, awaited.text) for awaited in job.waiting.nodes] == [
        ("b", job_pb2.AWAITED_STATE_LOST, "lost")
    ]
    assert "waiting for b (lost " in job.waiting.text
    stays.wait_text("waiting for b (lost ")
    world.agent("b", nnodes="2")
    again = world.mailbox.workers(2, round=2)
    assert [(worker.rank, worker.node) for worker in again] == [(0, "a"), (1, "b")]
