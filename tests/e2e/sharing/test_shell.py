"""Every RPC from a shell: `buf curl` needs reflection alone, and shows JSON that people read."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from msgspec import Struct

from rallypoint.server.core.keyspace.keyspace import REVISIONS_PER_EPOCH
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc
from support.processes.barriers import await_arrival
from support.processes.commands import SCRIPTS
from support.processes.feed import LIMIT_S
from support.processes.mailbox import Worker
from support.processes.world import NEW, World

CURL = (str(SCRIPTS / "buf"), "curl", "--protocol", "grpc", "--http2-prior-knowledge")
SESSION = "0123456789abcdef" * 2
HELLO = {
    "protocol_version": 1,
    "job_id": "shell",
    "spec": {
        "min_nodes": 2,
        "max_nodes": 2,
        "join_timeout": "600s",
        "shutdown_timeout": "30s",
        "lease": "5s",
        "heartbeat_interval": "1s",
    },
    "node_name": "laptop",
    "address": "127.0.0.1",
    "local_world_size": 1,
    "ready": {"master_port": 29500},
}
SEALED = {"reason": "ROUND_REASON_FIRST", "groupWorldSize": 2, "worldSize": 2}
SOME = object()
"""Stands for a value that differs from run to run."""


class Call(Struct, frozen=True):
    """A call, and what its answer must hold."""

    method: str
    request: dict[str, Any]
    answer: dict[str, Any]
    answers: int = 0
    """For a stream: how many answers are read; `answer` is the last of them. 0: it is no stream."""
    needs_token: bool = False


def key_calls(job_id: str, epoch: str) -> list[Call]:
    """Return a call of every RPC of KeyValueService, the change first."""
    job = {"job_id": job_id}

    def revision(number: int) -> str:
        """Return the revision of a change of this run."""
        return str(int(epoch) * REVISIONS_PER_EPOCH + number)

    bye = {
        "key": "greeting",
        "value": "Ynll",
        "createRevision": revision(1),
        "modRevision": revision(3),
        "version": "2",
    }
    made = [
        Call(
            "WriteKeys",
            {
                **job,
                "writes": [
                    {"key": "greeting", "put": {"value": "aGVsbG8="}},
                    {"key": "count", "add": {"amount": "-2"}},
                    {
                        "key": "greeting",
                        "compare_and_set": {"expected": {"value": "aGVsbG8="}, "value": "Ynll"},
                    },
                    {"key": "greetings", "put": {"value": "eA=="}},
                    {"key": "greetings", "delete": {}},
                ],
            },
            {
                "header": {"revision": revision(5), "epoch": epoch},
                "results": [
                    {"wasChanged": True, "revision": revision(1)},
                    {"sum": "-2"},
                    {"wasChanged": True, "kv": bye},
                    {"revision": revision(4)},
                    {"revision": revision(5)},
                ],
            },
        ),
        Call("GetKeys", {**job, "keys": ["greeting"], "timeout": "1.5s"}, {"kvs": [bye]}),
        Call(
            "ListKeys",
            {**job, "prefix": "c", "keys_only": True},
            {"kvs": [{"key": "count"}], "keyCount": 1},
        ),
        Call(
            "WatchKeys",
            {**job, "prefix": "greeting", "start_revision": revision(3), "epoch": epoch},
            {"events": [{"kv": bye}, {}, {"kv": {"modRevision": revision(5)}, "wasDeleted": True}]},
            answers=2,  # the first only has a header
        ),
    ]
    service = "rallypoint.v1.KeyValueService"
    return [
        Call(f"{service}/{call.method}", call.request, call.answer, call.answers, needs_token=True)
        for call in made
    ]


def calls(job_id: str) -> list[Call]:
    """Return a call of every other RPC, in an order in which each succeeds."""
    job, b = {"job_id": job_id}, {"job_id": job_id, "node_name": "b"}
    return [
        Call("grpc.health.v1.Health/Check", {}, {"status": "SERVING"}),
        Call("grpc.health.v1.Health/Watch", {}, {"status": "SERVING"}, answers=1),
        *(
            Call(
                f"grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                {"file_containing_symbol": "rallypoint.v1.BarrierBroken"},
                {"fileDescriptorResponse": SOME},
            )
            for version in ("v1", "v1alpha")
        ),
        Call(
            "rallypoint.v1.AgentService/Session",
            {"session_id": SESSION, "connection": 1, "hello": HELLO},
            {"sessionId": SESSION, "connection": "1", "welcome": {"nodeName": "laptop"}},
            answers=1,
        ),
        Call("rallypoint.v1.AgentService/Relay", {"protocol_version": 1}, {}, answers=1),
        Call(
            "rallypoint.v1.CoordinatorService/GetCoordinator",
            {},
            {"coordinator": {"counts": {"openJobs": SOME, "workers": SOME}, "protocolVersion": 1}},
        ),
        Call(
            "rallypoint.v1.JobService/GetJob",
            job,
            {"job": {"jobId": job_id, "phase": "JOB_PHASE_RUNNING", "age": SOME}},
        ),
        Call(
            "rallypoint.v1.JobService/ListJobs",
            {"page_size": 1},
            {"jobs": [{"jobId": job_id, "phase": "JOB_PHASE_RUNNING"}], "nextPageToken": SOME},
        ),
        Call(
            "rallypoint.v1.JobService/WatchJob",
            {**job, "view": "JOB_VIEW_SUMMARY"},
            {"summary": {"jobId": job_id, "phase": "JOB_PHASE_RUNNING"}},
            answers=1,
        ),
        Call(
            "rallypoint.v1.EventService/ListEvents",
            {**job, "kinds": ["EVENT_KIND_ROUND_SEALED"], "page_size": 5},
            {"events": [{"round": "1", "time": SOME, "roundSealed": SEALED}]},
        ),
        Call(
            "rallypoint.v1.EventService/WatchEvents",
            {**job, "kinds": ["EVENT_KIND_ROUND_SEALED"], "after_sequence": "0"},
            {"events": [{"jobId": job_id, "roundSealed": SEALED}], "lastSequence": SOME},
            answers=1,
        ),
        Call(
            "rallypoint.v1.JobService/WatchJobs",
            {"job_id_prefix": job_id},
            {"jobs": [{"jobId": job_id, "phase": "JOB_PHASE_RUNNING"}], "revision": SOME},
            answers=1,
        ),
        Call(
            "rallypoint.v1.JobService/ListRuns",
            job,
            {"runs": [{"run": "1", "outcome": "OUTCOME_OPEN", "openedAt": SOME}]},
        ),
        Call("rallypoint.v1.JobService/ListRounds", job, {}),
        Call(
            "rallypoint.v1.NodeService/GetNode",
            b,
            {"node": {"name": "b", "state": "NODE_STATE_STARTED"}},
        ),
        Call(
            "rallypoint.v1.NodeService/ListNodes",
            {**job, "page_size": 1},
            {"nodes": [{"name": SOME, "state": "NODE_STATE_STARTED"}], "nodeCount": 2},
        ),
        Call(
            "rallypoint.v1.NodeService/CordonNode",
            {**b, "reason": "bad memory"},
            {"health": {"nodeName": "b", "cordoned": True}, "connected": True},
        ),
        Call("rallypoint.v1.NodeService/UncordonNode", b, {"health": {"nodeName": "b"}}),
        Call(
            "rallypoint.v1.BarrierService/ListBarriers",
            job,
            {
                "barriers": [
                    {
                        "scope": "SCOPE_ROUND",
                        "round": "1",
                        "name": "open",
                        "generation": "1",
                        "expectedCount": 2,
                        "arrivedCount": 1,
                        "arrived": {"ranks": [0]},
                        "missing": {"ranks": [1]},
                        "age": SOME,
                        "sinceLastArrival": SOME,
                        "timeLeft": SOME,
                    }
                ]
            },
        ),
        Call(
            "rallypoint.v1.BarrierService/Arrive",
            {
                **job,
                "scope": "SCOPE_RUN",
                "name": "alone",
                "participant": {"name": "me"},
                "expected": {"participants": {"names": ["me"]}},
                "payload": "aGVsbG8=",
                "timeout": "1.5s",
            },
            {"participants": {"names": ["me"]}, "payloads": ["aGVsbG8="], "participantCount": 1},
            needs_token=True,
        ),
        Call(
            "rallypoint.v1.WorkerService/ReportProgress",
            {**job, "step": "12"},
            {"step": "12"},
            needs_token=True,
        ),
        Call(
            "rallypoint.v1.NodeService/DrainNode",
            {**b, "drain_timeout": "30.5s", "request_id": "d1"},
            {"timeLeft": "30.500s"},
        ),
        *changes(job_id),
    ]


def changes(job_id: str) -> list[Call]:
    """Return a call of every RPC that changes whole jobs: those of a new job, then of this one."""
    new = {"job_id": f"{job_id}-new"}
    spec = {"min_nodes": 1, "max_nodes": 2}
    made = [
        Call("CreateJob", {**new, "spec": spec}, {"job": {"phase": "JOB_PHASE_FORMING"}}),
        Call(
            "UpdateJob",
            {**new, "update": {"max_nodes": 5, "min_nodes": 3}, "update_mask": "maxNodes"},
            {"job": {"minNodes": 1, "maxNodes": 5}},
        ),
        Call("RestartJob", {"job_id": job_id, "round": "1"}, {"job": {"jobId": job_id}}),
        Call("CancelJob", {**new, "run": "1"}, {"job": {"outcome": "OUTCOME_CANCELLED"}}),
        Call("DeleteJob", {**new, "request_id": "d2"}, {}),
    ]
    service = "rallypoint.v1.JobService"
    return [Call(f"{service}/{call.method}", call.request, call.answer) for call in made]


@pytest.fixture
def workers(world: World) -> list[Worker]:
    """Return the workers of a job, the only one of its coordinator."""
    world.coordinator(0, *NEW)
    for name in ("a", "b"):
        world.agent(name, nnodes="2")
    return world.mailbox.workers(2)


@pytest.mark.long
def test_every_rpc_works_from_a_shell(world: World, workers: list[Worker]) -> None:
    """Each RPC that reflection lists answers, in JSON with names of enums and units of times."""
    listed = world.run(*CURL, "--list-methods", f"http://{world.target}").stdout.split()
    made = [
        *key_calls(world.job_id, workers[0].env["RALLYPOINT_EPOCH"]),
        *calls(world.job_id),
    ]
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(world.jobs.channel))
    token = workers[0].env["RALLYPOINT_WORKER_TOKEN"]
    waiting = barrier_grpc.BarrierServiceStub(world.jobs.channel).Arrive.future(
        barrier_pb2.ArriveRequest(
            job_id=world.job_id, name="open", participant=barrier_pb2.Participant(rank=0)
        ),
        metadata=(("rallypoint-worker-token", token),),
        timeout=LIMIT_S,
    )
    await_arrival(world, 0, "open")

    assert sorted(listed) == sorted(call.method for call in made)
    for call in made:
        answer = curl(world, call, token)
        assert holds(answer, call.answer), f"{call.method}: {json.dumps(answer, indent=2)}"
        service, _, name = call.method.partition("/")
        assert_readable(pool.FindServiceByName(service).methods_by_name[name], answer)
    waiting.cancel()


def curl(world: World, call: Call, token: str) -> dict[str, Any]:
    """Return the answer to a call from a shell."""
    header = ("-H", f"rallypoint-worker-token: {token}") if call.needs_token else ()
    url = f"http://{world.target}/{call.method}"
    argv = [*CURL, *header, "-d", json.dumps(call.request), url]
    if call.answers:
        command = world.start("buf", argv)
        command.wait_stdout("}" if call.answer else "{}", call.answers)
        command.kill()
        printed = command.stdout()
    else:
        ran = world.run(*argv)
        assert ran.returncode == 0, f"{call.method}: {ran.stderr}"
        printed = ran.stdout
    shown = re.findall(r"^\{(?:\}|$.*?^\})$", printed, re.MULTILINE | re.DOTALL)
    answer: dict[str, Any] = json.loads(shown[max(call.answers, 1) - 1])
    return answer


def holds(found: Any, expected: Any) -> bool:
    """Return whether a value is as expected; an object may have more fields."""
    if expected is SOME:
        return found is not None
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(holds(found.get(name), value) for name, value in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(holds, found, expected))
    return bool(found == expected)


def assert_readable(method: MethodDescriptor, answer: dict[str, Any]) -> None:
    """Assert that an answer is the canonical JSON of its message, with a name for every enum."""
    message = message_factory.GetMessageClass(method.output_type)()
    json_format.ParseDict(answer, message)

    assert json_format.MessageToDict(message) == answer
    assert unnamed(method.output_type, answer) == []


def unnamed(descriptor: Descriptor, answer: dict[str, Any]) -> list[str]:
    """Return the enum fields of an answer that are shown as numbers."""
    found = []
    for name, value in answer.items():
        field = descriptor.fields_by_camelcase_name[name]
        values = value if isinstance(value, list) else [value]
        if field.type == FieldDescriptor.TYPE_ENUM:
            found += [name for one in values if not isinstance(one, str)]
        elif field.message_type is not None:
            nested = [one for one in values if isinstance(one, dict)]  # a duration is a string
            for one in nested:
                found += unnamed(field.message_type, one)
    return found


def test_error_is_readable(world: World, workers: list[Worker]) -> None:
    """Without the token a call says what to send; the types of its details are named."""
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
