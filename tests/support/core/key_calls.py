"""A worker that calls KeyValueService as a client in any language would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from msgspec import Struct

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import key_value_service_pb2_grpc as keys_grpc
from rallypoint.wire.errors import unpack_detail
from support.core.served import LIMIT_S, Agent, Served, served

KEY = "rallypoint-worker-token"
Code = grpc.StatusCode


class Worker(Struct):
    """A worker of a round with one node."""

    server: Served
    agent: Agent
    token: str

    def call(self, method: str, token: str | None = "", **fields: Any) -> Any:
        """Begin a call; "" stands for the token of the round."""
        stub = keys_grpc.KeyValueServiceStub(self.server.channel)
        request = getattr(keys_pb2, f"{method}Request")(job_id=self.agent.job_id, **fields)
        metadata = None if token is None else ((KEY, token or self.token),)
        return getattr(stub, method)(request, metadata=metadata, timeout=LIMIT_S)

    async def put(self, key: str, value: bytes = b"", **fields: Any) -> int:
        """Set a key; return the revision."""
        answer = await self.call("WriteKeys", writes=[change(key, put={"value": value})], **fields)
        return int(answer.header.revision)

    async def write(self, key: str, **kind: Any) -> keys_pb2.KeyWritten:
        """Change a key; return what became of it."""
        answer: keys_pb2.WriteKeysResponse
        answer = await self.call("WriteKeys", writes=[change(key, **kind)])
        return answer.results[0]

    async def fail(self) -> None:
        """Let a worker of the round fail; return when the coordinator knows it."""
        ended = node_pb2.Worker(local_rank=0, pid=7, exit=node_pb2.WorkerExit(exit_code=3))
        await self.agent.report(exited=agent_pb2.Exited(round=1, workers=[ended]))
        while not (await self.agent.read()).HasField("desired"):
            pass

    async def get(self, *keys: str, **fields: Any) -> dict[str, bytes]:
        answer = await self.call("GetKeys", keys=keys, **fields)
        return {kv.key: kv.value for kv in answer.kvs}


def change(key: str, **kind: Any) -> keys_pb2.KeyWrite:
    """Return a change of a key, such as `change("n", add={"amount": 1})`."""
    return keys_pb2.KeyWrite(key=key, **kind)


@asynccontextmanager
async def worker(job_id: str = "job") -> AsyncIterator[Worker]:
    async with served() as server:
        agent = server.agent(job_id, 1)
        # It sends no heartbeats, and a machine may be slow.
        lease = job_pb2.JobSpec(lease=Duration(seconds=600))
        await agent.hello(local_world_size=2, spec=lease)
        order = (await agent.read()).welcome.desired.run
        yield Worker(server, agent, order.worker_token)


async def failure(call: Any) -> tuple[grpc.StatusCode, str, Any]:
    """Return the status, the text and the detail with which a call ends."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    error = failed.value
    return error.code(), error.details() or "", unpack_detail(error.trailing_metadata())


async def next_of(watch: Any) -> keys_pb2.WatchKeysResponse:
    async with asyncio.timeout(LIMIT_S):
        answer = await watch.read()
    assert isinstance(answer, keys_pb2.WatchKeysResponse), answer
    return answer


async def events_of(watch: Any, count: int) -> list[tuple[str, bytes, int]]:
    """Return the next changes of a watch: key, value and revision."""
    found: list[tuple[str, bytes, int]] = []
    while len(found) < count:
        for event in (await next_of(watch)).events:
            found.append((event.kv.key, event.kv.value, event.kv.mod_revision))
    return found
