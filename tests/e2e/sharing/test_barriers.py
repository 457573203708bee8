"""Barriers of workers that run: what their tokens are good for, and who learns of a failure."""

from typing import Any

import grpc
import pytest

from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.errors import unpack_detail
from support.processes.barriers import await_arrival
from support.processes.feed import LIMIT_S
from support.processes.mailbox import Worker
from support.processes.world import NEW, World


def arrive(world: World, worker: Worker, name: str = "ready") -> Any:
    """Let a worker arrive at a barrier of all ranks: with its token, as a library in it would."""
    request = barrier_pb2.ArriveRequest(
        job_id=worker.env["RALLYPOINT_JOB_ID"],
        name=name,
        participant=barrier_pb2.Participant(rank=worker.rank),
        payload=b"%d" % worker.rank,
        request_id=f"{name}-{worker.pid}",
    )
    metadata = (("rallypoint-worker-token", worker.env["RALLYPOINT_WORKER_TOKEN"]),)
    stub = barrier_grpc.BarrierServiceStub(world.jobs.channel)
    return stub.Arrive.future(request, metadata=metadata, timeout=LIMIT_S)


def start_four(world: World) -> list[Worker]:
    """Start two nodes with two workers each."""
    for name in ("a", "b"):
        world.agent(name, "--max-restarts=3", nnodes="2", nproc=2)
    return world.mailbox.workers(4)


def failure_of(call: Any) -> tuple[grpc.StatusCode, str, Any]:
    with pytest.raises(grpc.RpcError) as failed:
        call.result(LIMIT_S)
    error: Any = failed.value
    return error.code(), error.details(), unpack_detail(error.trailing_metadata())


def test_workers_of_a_round_meet(world: World) -> None:
    """Each gets the payloads of all. The token of a round is one for all its workers."""
    workers = start_four(world)
    assert len({worker.env["RALLYPOINT_WORKER_TOKEN"] for worker in workers}) == 1
    answers = [call.result(LIMIT_S) for call in [arrive(world, worker) for worker in workers]]

    assert all(list(answer.payloads) == [b"0", b"1", b"2", b"3"] for answer in answers)


def test_failed_worker_fails_the_barrier_and_its_round_is_over(world: World) -> None:
    """Who waits is answered at once; in the next round the old token is refused."""
    workers = start_four(world)
    waiting = [arrive(world, worker) for worker in workers[:3]]
    for worker in workers[:3]:
        await_arrival(world, worker.rank, "ready")
    workers[3].tell("exit", "7")
    for call in waiting:
        code, text, detail = failure_of(call)
        assert (code, list(detail.lost.ranks)) == (grpc.StatusCode.ABORTED, [3])
        assert "rank 3 on node b failed: exit code 7" in text
    again = world.mailbox.workers(4, round=2)

    code, _, detail = failure_of(arrive(world, workers[0]))
    assert (code, detail.kind) == (grpc.StatusCode.ABORTED, details_pb2.STALE_KIND_ROUND)
    answers = [call.result(LIMIT_S) for call in [arrive(world, worker) for worker in again]]
    assert [answer.generation for answer in answers] == [1] * 4


@pytest.mark.usefixtures("forgetful")
def test_token_outlives_the_coordinator(world: World) -> None:
    """The next one, which has no memory, adopts the round, and the token of its workers with it."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    agents = [world.agent(name, nnodes="2", nproc=2) for name in ("a", "b")]
    workers = world.mailbox.workers(4)
    coordinator.kill()
    world.coordinator(port)
    early = arrive(world, workers[0], "early")
    assert failure_of(early)[0] is grpc.StatusCode.UNAVAILABLE
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    world.jobs.wait(world.job_id, lambda job: job.HasField("round"))

    answers = [call.result(LIMIT_S) for call in [arrive(world, worker) for worker in workers]]
    assert [answer.generation for answer in answers] == [1] * 4
