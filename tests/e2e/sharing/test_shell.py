"""Refusals in a shell: what `buf curl` shows of them, and what reflection says of their details."""

from __future__ import annotations

import json

import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from support.processes.commands import SCRIPTS
from support.processes.feed import LIMIT_S
from support.processes.world import World

CURL = (str(SCRIPTS / "buf"), "curl", "--protocol", "grpc", "--http2-prior-knowledge")


def test_error_is_readable(world: World) -> None:
    """Without the token a call says what to send; the types of its details are named."""
    world.agent("a").wait_event("coordinator_reached")
    request = {"job_id": world.job_id, "name": "hello", "participant": {"rank": 0}}
    url = f"http://{world.target}/rallypoint.v1.BarrierService/Arrive"
    ran = world.run(*CURL, "-d", json.dumps(request), url)
    error = json.loads(ran.stderr)

    assert ran.returncode != 0
    assert error["code"] == "unauthenticated"
    assert "send RALLYPOINT_WORKER_TOKEN as the metadata" in error["message"]
    assert [detail["type"] for detail in error["details"]] == ["google.rpc.ErrorInfo"]


@pytest.mark.parametrize(
    "name",
    [
        "rallypoint.v1.BarrierBroken",
        "google.rpc.Status",
        "google.rpc.ErrorInfo",
        "google.rpc.BadRequest",
    ],
)
def test_details_are_described(world: World, name: str) -> None:
    """A client that decodes details by reflection, such as grpcurl, finds their types."""
    stub = reflection_pb2_grpc.ServerReflectionStub(world.jobs.channel)
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=LIMIT_S)

    assert answer.WhichOneof("message_response") == "file_descriptor_response", answer
