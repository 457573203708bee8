"""Keys of workers that run: how long they last, and what a new coordinator says of them."""

from typing import Any

import grpc
import pytest

from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import key_value_service_pb2_grpc as keys_grpc
from rallypoint.v1 import scope_pb2
from rallypoint.wire.errors import unpack_detail
from support.core.key_calls import change
from support.processes.feed import LIMIT_S
from support.processes.mailbox import Worker
from support.processes.world import NEW, World

RUN, ROUND = scope_pb2.SCOPE_RUN, scope_pb2.SCOPE_ROUND


def call(world: World, worker: Worker, method: str, **fields: Any) -> Any:
    """Call as a library in the worker would, with its token."""
    job_id = worker.env["RALLYPOINT_JOB_ID"]
    request = getattr(keys_pb2, f"{method}Request")(job_id=job_id, **fields)
    metadata = (("rallypoint-worker-token", worker.env["RALLYPOINT_WORKER_TOKEN"]),)
    stub = keys_grpc.KeyValueServiceStub(world.jobs.channel)
    return getattr(stub, method)(request, metadata=metadata, timeout=LIMIT_S)


def read(world: World, worker: Worker, scope: scope_pb2.Scope.ValueType) -> dict[str, bytes]:
    page = call(world, worker, "ListKeys", scope=scope)
    return {kv.key: kv.value for kv in page.kvs}


def failure_of(begin: Any, *args: Any, **fields: Any) -> tuple[grpc.StatusCode, Any]:
    with pytest.raises(grpc.RpcError) as failed:
        begin(*args, **fields)
    error: Any = failed.value
    return error.code(), unpack_detail(error.trailing_metadata())


def test_keys_of_the_run_outlive_a_round(world: World) -> None:
    """Those of the round do not. The old round's worker reads and writes nothing."""
    for name in ("a", "b"):
        world.agent(name, "--max-restarts=3", nnodes="2")
    first, second = world.mailbox.workers(2)
    call(world, first, "WriteKeys", writes=[change("step", put={"value": b"10"})], scope=RUN)
    call(world, second, "WriteKeys", writes=[change("address", put={"value": b"old"})])
    assert read(world, first, ROUND) == {"address": b"old"}
    second.tell("exit", "7")
    again, _ = world.mailbox.workers(2, round=2)

    assert read(world, again, RUN) == {"step": b"10"}
    assert read(world, again, ROUND) == {}
    for method, fields in (("ListKeys", {}), ("WriteKeys", {"writes": [change("a", put={})]})):
        code, detail = failure_of(call, world, first, method, **fields)
        assert (code, detail.kind) == (grpc.StatusCode.ABORTED, details_pb2.STALE_KIND_ROUND)


@pytest.mark.usefixtures("forgetful")
def test_new_coordinator_says_what_it_has_forgotten(world: World) -> None:
    """It has no memory: a repeated change is not made blindly, a watch does not skip in silence."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    agents = [world.agent(name, nnodes="2") for name in ("a", "b")]
    worker, _ = world.mailbox.workers(2)
    request = {"writes": [change("n", add={"amount": 1})], "request_id": "r"}
    header = call(world, worker, "WriteKeys", **request).header
    coordinator.kill()
    world.coordinator(port)
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    world.jobs.wait(world.job_id, lambda job: job.HasField("round"))

    code, _ = failure_of(call, world, worker, "WriteKeys", **request, known=header)
    assert code is grpc.StatusCode.DATA_LOSS
    since = {"start_revision": header.revision + 1, "epoch": header.epoch}
    watch = call(world, worker, "WatchKeys", **since)
    code, detail = failure_of(next, watch)
    assert code is grpc.StatusCode.OUT_OF_RANGE
    assert detail.oldest_revision > header.revision, "no revision comes twice"
    (result,) = call(world, worker, "WriteKeys", **request | {"request_id": "s"}).results
    assert result.sum == 1
