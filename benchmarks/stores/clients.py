"""Clients of the stores that are compared: each makes one call of a kind and waits for its answer.

Rallypoint and etcd get the same client: generated messages over grpc.aio, one connection each. The
client of a TCPStore is torch's own.
"""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from rallypoint.v1 import key_value_service_pb2 as kv_pb2
from rallypoint.v1 import key_value_service_pb2_grpc as kv_grpc
from rallypoint.wire.channel import client_options

VALUE = bytes(64)
KEYS = 8
"""Keys that a client uses in turn."""
BATCH = 16
"""Changes of one call."""
COUNTER = "bench/counter"
"""All clients add to it."""
LIMIT_S = 30.0


class Op(StrEnum):
    """One kind of call."""

    PUT = "put"
    GET = "get"
    ADD = "add"
    BATCH = f"{BATCH} puts"


class Kind(StrEnum):
    """Which client a store needs."""

    RALLYPOINT = "rallypoint"
    ETCD = "etcd"
    TCPSTORE = "tcpstore"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a store is, and what its clients have to show."""

    kind: Kind
    address: str
    """host:port."""
    job_id: str = ""
    token: str = ""

    def answers(self, op: Op) -> bool:
        """Return whether a call returns only when the store has answered."""
        return self.kind is not Kind.TCPSTORE or op in (Op.GET, Op.ADD)


class Client(Protocol):
    """One client with a separate connection, over gRPC."""

    async def call(self, op: Op, number: int) -> None:
        """Make one call; `number` chooses the key."""

    async def close(self) -> None: ...


def key_of(client: int, number: int) -> str:
    """Return the key of a client's call."""
    return f"bench/{client}/{number % KEYS}"


def batch_keys(client: int) -> list[str]:
    """Return the keys of a client's batch."""
    return [f"bench/{client}/b{number}" for number in range(BATCH)]


class RallypointClient:
    """Calls KeyValueService as a worker does: with its token, and with ids to repeat a call."""

    def __init__(self, target: Target, client: int) -> None:
        self._channel = grpc.aio.insecure_channel(target.address, options=client_options())
        self._stub: Any = kv_grpc.KeyValueServiceStub(self._channel)
        self._job_id, self._client = target.job_id, client
        self._options: Any = {
            "metadata": (("rallypoint-worker-token", target.token),),
            "timeout": LIMIT_S,
        }
        self._mark, self._count = secrets.token_hex(4), count()

    async def call(self, op: Op, number: int) -> None:
        """Make one call."""
        stub, options, job_id = self._stub, self._options, self._job_id
        request_id = f"{self._mark}-{next(self._count)}"
        match op:
            case Op.PUT:
                key = key_of(self._client, number)
                put = kv_pb2.PutKeyRequest(
                    job_id=job_id, key=key, value=VALUE, request_id=request_id
                )
                await stub.PutKey(put, **options)
            case Op.GET:
                key = key_of(self._client, number)
                got = await stub.GetKeys(
                    kv_pb2.GetKeysRequest(job_id=job_id, keys=[key]), **options
                )
                assert got.kvs[0].value == VALUE
            case Op.ADD:
                add = kv_pb2.AddToKeyRequest(
                    job_id=job_id, key=COUNTER, amount=1, request_id=request_id
                )
                assert (await stub.AddToKey(add, **options)).sum > 0
            case Op.BATCH:
                writes = [
                    kv_pb2.KeyWrite(key=key, put=kv_pb2.KeyWrite.Put(value=VALUE))
                    for key in batch_keys(self._client)
                ]
                batch = kv_pb2.WriteKeysRequest(job_id=job_id, writes=writes, request_id=request_id)
                assert len((await stub.WriteKeys(batch, **options)).results) == BATCH

    async def close(self) -> None:
        await self._channel.close()


class EtcdClient:
    """Calls etcd's v3 API.

    etcd cannot add. It counts the changes of a key, so one that is set and read in one transaction
    is a counter: of ones only, but without attempts that fail.
    """

    def __init__(self, target: Target, client: int) -> None:
        self._channel = grpc.aio.insecure_channel(target.address, options=client_options())
        self._pb, services = load_etcd()
        self._stub: Any = services.KVStub(self._channel)
        self._client = client

    async def call(self, op: Op, number: int) -> None:
        """Make one call."""
        pb, stub = self._pb, self._stub
        match op:
            case Op.PUT:
                key = key_of(self._client, number).encode()
                await stub.Put(pb.PutRequest(key=key, value=VALUE), timeout=LIMIT_S)
            case Op.GET:
                key = key_of(self._client, number).encode()
                got = await stub.Range(pb.RangeRequest(key=key), timeout=LIMIT_S)
                assert got.kvs[0].value == VALUE
            case Op.ADD:
                key = COUNTER.encode()
                steps = [
                    pb.RequestOp(request_put=pb.PutRequest(key=key)),
                    pb.RequestOp(request_range=pb.RangeRequest(key=key)),
                ]
                done = await stub.Txn(pb.TxnRequest(success=steps), timeout=LIMIT_S)
                assert done.responses[1].response_range.kvs[0].version > 0
            case Op.BATCH:
                steps = [
                    pb.RequestOp(request_put=pb.PutRequest(key=key.encode(), value=VALUE))
                    for key in batch_keys(self._client)
                ]
                done = await stub.Txn(pb.TxnRequest(success=steps), timeout=LIMIT_S)
                assert len(done.responses) == BATCH

    async def close(self) -> None:
        await self._channel.close()


def load_etcd() -> tuple[Any, Any]:
    """Return the messages and the stubs of etcd.proto."""
    folder = str(Path(__file__).parent)
    if folder not in sys.path:  # where gRPC looks for .proto files
        sys.path.append(folder)
    return grpc.protos_and_services("etcd.proto")


class TcpStoreClient:
    """Calls a TCPStore. It blocks, so each has a thread."""

    def __init__(self, target: Target, client: int) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public

        host, _, port = target.address.rpartition(":")
        limit = timedelta(seconds=LIMIT_S)
        self._store = TCPStore(host, int(port), wait_for_workers=False, timeout=limit)
        self._client = client
        self._batch = (batch_keys(client), [VALUE] * BATCH)

    def call(self, op: Op, number: int) -> None:
        """Make one call. A put only sends: it has no answer."""
        match op:
            case Op.PUT:
                self._store.set(key_of(self._client, number), VALUE.decode())
            case Op.GET:
                assert self._store.get(key_of(self._client, number)) == VALUE
            case Op.ADD:
                assert self._store.add(COUNTER, 1) > 0
            case Op.BATCH:
                self._store.multi_set(*self._batch)  # type: ignore[attr-defined]  # it is there

    def flush(self) -> None:
        """Wait until the store has handled everything that this client has sent."""
        self._store.check([COUNTER])


def open_client(target: Target, client: int) -> Client:
    """Return a client for a store that speaks gRPC."""
    kinds: dict[Kind, type[RallypointClient | EtcdClient]] = {
        Kind.RALLYPOINT: RallypointClient,
        Kind.ETCD: EtcdClient,
    }
    return kinds[target.kind](target, client)


def quiet_grpc() -> None:
    """Keep gRPC's own log out of the output."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
