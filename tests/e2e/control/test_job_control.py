"""Operators cancel, restart, resize and delete a job that runs."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_pb2, round_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.wire.errors import unpack_detail
from support.processes.feed import LIMIT_S
from support.processes.jobs import is_started
from support.processes.world import World


def operate(world: World, method: str, **fields: Any) -> Any:
    """Call as an operator."""
    request = getattr(service_pb2, f"{method}Request")(job_id=world.job_id, **fields)
    stub = service_grpc.JobServiceStub(world.jobs.channel)
    return getattr(stub, method)(request, timeout=LIMIT_S)


def failure_of(world: World, method: str, **fields: Any) -> tuple[grpc.StatusCode, Any]:
    with pytest.raises(grpc.RpcError) as failed:
        operate(world, method, **fields)
    error: Any = failed.value
    return error.code(), unpack_detail(error.trailing_metadata())


def test_cancelled_job_ends_on_every_node(world: World) -> None:
    """Agents stop their workers, print why, and exit with 94. Then the job can be deleted."""
    agents = [world.agent(name, "--max-restarts=3", nnodes="2") for name in ("a", "b")]
    workers = world.mailbox.workers(2)
    code, detail = failure_of(world, "DeleteJob")
    assert (code, detail.run) == (grpc.StatusCode.FAILED_PRECONDITION, 1)
    answer = operate(world, "CancelJob", reason="wrong data", request_id="r1")
    assert answer.job.outcome == job_pb2.OUTCOME_CANCELLED

    assert [agent.wait() for agent in agents] == [94, 94]
    assert not any(Path("/proc", str(worker.pid)).exists() for worker in workers)
    for agent in agents:
        assert "the job was cancelled: wrong data" in agent.stderr()
    again = operate(world, "CancelJob", reason="wrong data", request_id="r1")
    assert again.job.outcome == job_pb2.OUTCOME_CANCELLED
    code, detail = failure_of(world, "RestartJob")
    assert detail == details_pb2.JobEnded(
        job_id=world.job_id, run=1, outcome=job_pb2.OUTCOME_CANCELLED
    )
    operate(world, "DeleteJob")
    assert failure_of(world, "DeleteJob")[0] is grpc.StatusCode.NOT_FOUND


def test_restarted_job_begins_another_round(world: World) -> None:
    """Its workers keep their ranks, no restart is charged, and a repetition does nothing."""
    for name in ("a", "b"):
        world.agent(name, nnodes="2")
    before = world.mailbox.workers(2)
    operate(world, "RestartJob", round=1, reason="new data")
    after = world.mailbox.workers(2, round=2)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 2))
    job = operate(world, "RestartJob", round=1).job

    assert (job.round, job.restart_count, job.phase) == (2, 0, job_pb2.JOB_PHASE_RUNNING)
    ranks = {worker.node: worker.rank for worker in before}
    assert ranks == {worker.node: worker.rank for worker in after}
    (first,) = world.jobs.get(world.job_id).history
    assert first.end_reason == round_pb2.ROUND_REASON_RESTART_REQUESTED


def test_job_is_resized_while_it_runs(world: World) -> None:
    """Smaller at once; larger as in any growth. The agents keep their command lines."""
    for name in ("a", "b"):
        world.agent(name, nnodes="2")
    world.mailbox.workers(2)
    update = resized(min_nodes=1, max_nodes=1)
    assert operate(world, "UpdateJob", update=update).job.world_size == 2, "it is being stopped"
    world.mailbox.workers(1, round=2)
    operate(world, "UpdateJob", update=resized(max_nodes=3, max_restarts=5))
    world.agent("c", nnodes="2")
    world.jobs.wait(world.job_id, lambda job: job.round.header.group_world_size == 3)

    job = world.jobs.get(world.job_id)
    assert (job.spec.max_nodes, job.spec.max_restarts, job.restart_count) == (3, 5, 0)
    assert job.history[0].end_reason == round_pb2.ROUND_REASON_RESIZED


def resized(**fields: int) -> service_pb2.JobUpdate:
    return service_pb2.JobUpdate(**fields)
