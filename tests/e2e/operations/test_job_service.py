"""What a coordinator reports of its jobs while they run."""

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from rallypoint.v1 import error_details_pb2, job_pb2, node_pb2
from rallypoint.wire.errors import unpack_detail
from support.processes.feed import LIMIT_S
from support.processes.jobs import is_started, node
from support.processes.world import World

SERVICES = {
    "rallypoint.v1.AgentService",
    "rallypoint.v1.JobService",
    "rallypoint.v1.NodeService",
    "rallypoint.v1.WorkerService",
}


def test_unknown_job_is_not_found(world: World) -> None:
    """GetJob and WatchJob answer NOT_FOUND with UnknownJob and the requested name."""
    for ask in (world.jobs.get, world.jobs.history):
        with pytest.raises(grpc.RpcError) as caught:
            ask("no-such-job")

        error = caught.value
        assert isinstance(error, grpc.Call)
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert error.details() == "there is no job 'no-such-job'"
        detail = unpack_detail(error.trailing_metadata())
        assert detail == error_details_pb2.UnknownJob(job_id="no-such-job")


def test_bad_request_is_refused_by_field(world: World) -> None:
    """INVALID_ARGUMENT names the field."""
    for field, ask in (
        ("job_id", lambda: world.jobs.get("")),
        ("page_token", lambda: world.jobs.page(page_token="other")),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            ask()

        error = caught.value
        assert isinstance(error, grpc.Call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert field in (error.details() or "")


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


def test_jobs_are_listed_page_by_page(world: World) -> None:
    """Every job is on exactly one page, ordered by id."""
    names = [f"{world.job_id}-{number}" for number in range(3)]
    for name in names:
        world.agent("a", f"--job-id={name}", nnodes="2").wait_event("coordinator_reached")
    found: list[job_pb2.JobSummary] = []
    token = ""
    while True:
        page = world.jobs.page(page_size=2, page_token=token)
        assert len(page.jobs) <= 2
        found += page.jobs
        token = page.next_page_token
        if not token:
            break

    ids = [job.job_id for job in found]
    assert ids == sorted(set(ids))
    assert set(names) <= set(ids)
    assert {(1, 1, "1 of 2 required")} == {
        (job.run, job.node_count, job.waiting[:15]) for job in found if job.job_id in names
    }


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


def test_last_call_is_a_wait_too(world: World) -> None:
    """A job with enough nodes that waits for more shows that, and until when."""
    world.agent("a", "--last-call=60", nnodes="1:2").wait_event("coordinator_reached")
    job = world.jobs.wait(world.job_id, lambda job: job.waiting.kind == job_pb2.WAIT_KIND_LAST_CALL)

    assert (job.waiting.ready_nodes, job.waiting.needed_nodes) == (1, 2)
    assert 0 < job.waiting.time_left.seconds <= 60
    world.agent("b", "--last-call=60", nnodes="1:2")
    assert len(world.mailbox.workers(2)) == 2


def test_health_is_serving(world: World) -> None:
    """The standard health service reports the server and each service."""
    for service in ("", *SERVICES):
        assert world.jobs.health(service) == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_lists_the_services(world: World, version: str) -> None:
    """Clients such as grpcurl find the services, with the old and the new reflection protocol."""
    call = world.jobs.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = call(iter([request]), timeout=LIMIT_S)

    names = {service.name for service in answer.list_services_response.service}
    assert SERVICES <= names
