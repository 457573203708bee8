"""A floor for the coordinator's cost: a grpc.aio server that answers KeyValueService at once.

It decodes each request, and encodes an answer of the usual size. All other cost of a coordinator is
not gRPC's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from rallypoint.v1 import key_value_service_pb2 as kv_pb2
from rallypoint.wire.channel import server_options

HEADER = kv_pb2.KeyValueHeader(epoch=1 << 40, revision=1 << 20)
WRITTEN = kv_pb2.KeyWritten(was_changed=True, revision=1 << 20)


def answer_put(request: kv_pb2.PutKeyRequest) -> kv_pb2.PutKeyResponse:
    return kv_pb2.PutKeyResponse(header=HEADER)


def answer_get(request: kv_pb2.GetKeysRequest) -> kv_pb2.GetKeysResponse:
    kv = kv_pb2.KeyValue(key=request.keys[0], value=bytes(64), mod_revision=1 << 20, version=1)
    return kv_pb2.GetKeysResponse(header=HEADER, kvs=[kv])


def answer_add(request: kv_pb2.AddToKeyRequest) -> kv_pb2.AddToKeyResponse:
    return kv_pb2.AddToKeyResponse(header=HEADER, sum=1 << 20)


def answer_batch(request: kv_pb2.WriteKeysRequest) -> kv_pb2.WriteKeysResponse:
    return kv_pb2.WriteKeysResponse(header=HEADER, results=[WRITTEN] * len(request.writes))


def handler(request: type[Any], answer: Callable[[Any], Any]) -> Any:
    """Return the handler of a method."""

    async def serve(message: Any, context: Any) -> bytes:
        packed: bytes = answer(message).SerializeToString()
        return packed

    decode = request.FromString
    return grpc.unary_unary_rpc_method_handler(serve, request_deserializer=decode)


async def main() -> None:
    """Serve until killed."""
    methods = {
        "PutKey": handler(kv_pb2.PutKeyRequest, answer_put),
        "GetKeys": handler(kv_pb2.GetKeysRequest, answer_get),
        "AddToKey": handler(kv_pb2.AddToKeyRequest, answer_add),
        "WriteKeys": handler(kv_pb2.WriteKeysRequest, answer_batch),
    }
    service = "rallypoint.v1.KeyValueService"
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
